-- Every run's status follows from its attempts, every node's state from its executions.
SELECT run_id, format('%s: %s', status, reason) AS what FROM lease.unexplained_runs
UNION ALL
SELECT run_id, format('node %s, %s: %s', node_id, state, reason) FROM lease.unexplained_nodes;
