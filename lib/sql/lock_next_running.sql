-- Lock a running run that has no open attempt (its worker was lost and the policy is record),
-- passing over those that others are claiming. Reads the running runs in order of run_id.
-- $1 tenant, NULL: any.
SELECT r.run_id
  FROM lease.runs r
 WHERE r.status = 'running'
   AND r.cancel_requested_at IS NULL
   AND (r.deadline_at IS NULL OR r.deadline_at > clock_timestamp())
   AND ($1::text IS NULL OR r.tenant_id = $1::text)
   AND (SELECT a.attempt_no FROM lease.run_attempts a
         WHERE a.run_id = r.run_id AND a.finished_at IS NULL) IS NULL
 ORDER BY r.run_id
 LIMIT 1
   FOR NO KEY UPDATE OF r SKIP LOCKED;
