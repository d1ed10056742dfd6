-- Attempts are numbered 1, 2, 3 within their run, executions within their node: no gap, no repeat.
SELECT run_id, format('%s attempts, numbered %s to %s', count(*), min(attempt_no), max(attempt_no)) AS what
  FROM lease.run_attempts
 GROUP BY run_id
HAVING min(attempt_no) <> 1 OR max(attempt_no) <> count(*) OR count(DISTINCT attempt_no) <> count(*)
UNION ALL
SELECT run_id, format('%s executions of %s, numbered %s to %s', count(*), node_id, min(attempt_no), max(attempt_no))
  FROM lease.node_executions
 GROUP BY run_id, node_id
HAVING min(attempt_no) <> 1 OR max(attempt_no) <> count(*) OR count(DISTINCT attempt_no) <> count(*);
