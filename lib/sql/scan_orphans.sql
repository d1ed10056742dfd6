-- Running runs without an open attempt, after run_id $1, at most $2. A merge anti join of two
-- partial indexes; the literals are those of runs_running_idx and run_attempts_open_idx.
-- $3 false: only those that a cancel request or a passed deadline ends, because the policy leaves
-- the others alone.
SELECT r.run_id
  FROM lease.runs r
 WHERE r.status = 'running'
   AND r.run_id > $1::text
   AND ($3::bool OR r.cancel_requested_at IS NOT NULL OR r.deadline_at <= clock_timestamp())
   AND NOT EXISTS (SELECT FROM lease.run_attempts a
                    WHERE a.run_id = r.run_id AND a.finished_at IS NULL AND a.run_id > $1::text)
 ORDER BY r.run_id
 LIMIT $2::int8;
