-- Every attempt has one event of its opening and, closed, one of its end, with its owner and
-- outcome; and every such event has its attempt.
SELECT run_id, format('%s of attempt %s (%s, %s): %s facts, %s events', kind, attempt_no, owner, outcome,
           sum(fact), sum(event)) AS what
  FROM (SELECT run_id, attempt_no, 'attempt_opened' AS kind, owner, NULL AS outcome, 1 AS fact, 0 AS event
          FROM lease.run_attempts
         UNION ALL
        SELECT run_id, attempt_no, 'attempt_closed', owner, outcome, 1, 0
          FROM lease.run_attempts WHERE finished_at IS NOT NULL
         UNION ALL
        SELECT run_id, attempt_no, kind, owner, outcome, 0, 1
          FROM lease.run_events WHERE kind IN ('attempt_opened', 'attempt_closed')) x
 GROUP BY run_id, attempt_no, kind, owner, outcome
HAVING sum(fact) <> 1 OR sum(event) <> 1;
