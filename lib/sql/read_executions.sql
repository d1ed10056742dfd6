-- All executions of a run's nodes, with the worker that executed them. $1 run_id.
SELECT e.node_id, e.attempt_no, e.run_attempt_no, a.owner, e.status, e.started_at, e.finished_at,
       e.operation_id, e.input_ref, e.output_ref, e.normalized_error, e.error_message, e.trace_id
  FROM lease.node_executions e
  JOIN lease.run_attempts a ON a.run_id = e.run_id AND a.attempt_no = e.run_attempt_no
 WHERE e.run_id = $1::text
 ORDER BY e.started_at, e.node_id, e.attempt_no;
