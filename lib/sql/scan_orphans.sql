-- One page of the scan for orphans: the running runs after run_id $1, at most $2 of them; of these the
-- ones without an open attempt. The literals are those of runs_running_idx and
-- run_attempts_open_idx.
-- $3 false: only those that a cancel request or a passed deadline ends, because the policy leaves
-- the others alone.
-- The first row holds 0, the last run_id of the page (NULL: it is empty) and how many runs are in it.
-- Then one row a run: 1, run_id, NULL.
WITH page AS MATERIALIZED (
    SELECT r.run_id,
           $3::bool OR r.cancel_requested_at IS NOT NULL OR r.deadline_at <= clock_timestamp() AS wanted
      FROM lease.runs r
     WHERE r.status = 'running' AND r.run_id > $1::text
     ORDER BY r.run_id
     LIMIT $2::int8
)
SELECT 0, max(p.run_id), count(*)::int4 FROM page p
UNION ALL
SELECT 1, p.run_id, NULL
  FROM page p
 WHERE p.wanted
   AND (SELECT a.attempt_no FROM lease.run_attempts a
         WHERE a.run_id = p.run_id AND a.finished_at IS NULL) IS NULL;
