-- An attempt is closed as lost only when its lease is over, and no lease reaches past the deadline.
SELECT a.run_id, format('attempt %s of %s: %s at %s, its lease ends at %s, the deadline is %s',
           a.attempt_no, a.owner, coalesce(a.outcome, 'open'), a.finished_at, a.lease_expires_at,
           a.deadline_at) AS what
  FROM lease.run_attempts a
 WHERE (a.outcome = 'lease_expired' AND a.finished_at < a.lease_expires_at)
    OR a.lease_expires_at > a.deadline_at;
