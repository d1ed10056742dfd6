-- What lease_decide needs to know of a node, beside look.sql, under the lock on its run.
-- $1 run_id, $2 node_id, $3 number of an execution (0: none), $4 operation_id (NULL: none).
-- Gives one row: last execution's number, its status, its output_ref; whether the operation is
-- known and is this node's; the named execution's number, run attempt and status.
SELECT l.attempt_no, l.status, l.output_ref,
       p.operation_id IS NOT NULL,
       coalesce(p.run_id = $1::text AND p.node_id = $2::text, false),
       x.attempt_no, x.run_attempt_no, x.status
  FROM (SELECT) one
  LEFT JOIN LATERAL (
       SELECT e.attempt_no, e.status, e.output_ref
         FROM lease.node_executions e
        WHERE e.run_id = $1::text AND e.node_id = $2::text
        ORDER BY e.attempt_no DESC
        LIMIT 1) l ON true
  LEFT JOIN lease.operations p ON p.operation_id = $4::text
  LEFT JOIN lease.node_executions x
         ON x.run_id = $1::text AND x.node_id = $2::text AND x.attempt_no = $3::int4;
