-- Nothing was done in the name of an attempt before it began or after it was closed.
SELECT e.run_id, format('execution %s of %s began at %s under attempt %s, which lasted from %s to %s', e.attempt_no,
           e.node_id, e.started_at, a.attempt_no, a.started_at, a.finished_at) AS what
  FROM lease.node_executions e
  JOIN lease.run_attempts a ON a.run_id = e.run_id AND a.attempt_no = e.run_attempt_no
 WHERE e.started_at < a.started_at OR e.started_at > a.finished_at
UNION ALL
SELECT c.run_id, format('checkpoint %s was recorded at %s under attempt %s, which lasted from %s to %s',
           c.checkpoint_id, c.created_at, a.attempt_no, a.started_at, a.finished_at)
  FROM lease.checkpoints c
  JOIN lease.run_attempts a ON a.run_id = c.run_id AND a.attempt_no = c.run_attempt_no
 WHERE c.created_at < a.started_at OR c.created_at > a.finished_at;
