-- As lock_runs.sql, but passes over what somebody else has locked.
SELECT w.ord::int4
  FROM unnest($1::text[]) WITH ORDINALITY AS w (run_id, ord)
  JOIN lease.runs r ON r.run_id = w.run_id
 ORDER BY w.ord
   FOR NO KEY UPDATE OF r SKIP LOCKED;
