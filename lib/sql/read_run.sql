-- One run's row. $1 run_id.
SELECT clock_timestamp(), r.tenant_id, r.status, r.state_version, r.plan_version,
       r.not_before, r.deadline_at, r.cancel_requested_at, r.created_at, r.updated_at, r.finished_at,
       r.terminal_error_code, r.terminal_error_message
  FROM lease.runs r
 WHERE r.run_id = $1::text;
