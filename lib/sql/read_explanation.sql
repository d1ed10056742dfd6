-- A run's current checkpoint, and why its attempts or its nodes' executions do not explain it
-- (NULL: they do). $1 run_id.
SELECT r.current_checkpoint_id,
       coalesce((SELECT u.reason FROM lease.unexplained_runs u WHERE u.run_id = r.run_id),
                (SELECT string_agg(n.node_id || ': ' || n.reason, '; ' ORDER BY n.node_id)
                   FROM lease.unexplained_nodes n WHERE n.run_id = r.run_id))
  FROM lease.runs r
 WHERE r.run_id = $1::text;
