-- Pending and waiting runs whose deadline has passed, after run_id $1, at most $2. The literals are
-- those of runs_deadline_idx.
SELECT r.run_id
  FROM lease.runs r
 WHERE r.status IN ('pending', 'waiting')
   AND r.deadline_at IS NOT NULL
   AND r.deadline_at <= clock_timestamp()
   AND r.run_id > $1::text
 ORDER BY r.run_id
 LIMIT $2::int8;
