-- The same for node executions: their start and, closed, their end with its status.
SELECT run_id, format('%s of execution %s of %s under attempt %s (%s): %s facts, %s events', kind, execution_no,
           node_id, attempt_no, status, sum(fact), sum(event)) AS what
  FROM (SELECT run_id, run_attempt_no AS attempt_no, node_id, attempt_no AS execution_no,
               'node_started' AS kind, 'running' AS status, 1 AS fact, 0 AS event
          FROM lease.node_executions
         UNION ALL
        SELECT run_id, run_attempt_no, node_id, attempt_no, 'node_finished', status, 1, 0
          FROM lease.node_executions WHERE finished_at IS NOT NULL
         UNION ALL
        SELECT run_id, attempt_no, node_id, execution_no, kind, to_status, 0, 1
          FROM lease.run_events WHERE kind IN ('node_started', 'node_finished')) x
 GROUP BY run_id, attempt_no, node_id, execution_no, kind, status
HAVING sum(fact) <> 1 OR sum(event) <> 1;
