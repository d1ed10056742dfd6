-- At no moment has a run two open attempts: each begins after the end of the one before.
SELECT b.run_id, format('attempt %s of %s began at %s, attempt %s of %s %s', b.attempt_no, b.owner,
           b.started_at, a.attempt_no, a.owner, coalesce('ended at ' || a.finished_at, 'is open')) AS what
  FROM lease.run_attempts a
  JOIN lease.run_attempts b ON b.run_id = a.run_id AND b.attempt_no > a.attempt_no
 WHERE a.finished_at IS NULL OR a.finished_at > b.started_at;
