-- All attempts of a run. $1 run_id.
SELECT a.attempt_no, a.owner, a.started_at, a.heartbeat_at, a.lease_expires_at, a.deadline_at,
       a.cancel_requested_at, a.finished_at, a.outcome, a.error_code, a.error_message, a.trace_id
  FROM lease.run_attempts a
 WHERE a.run_id = $1::text
 ORDER BY a.attempt_no;
