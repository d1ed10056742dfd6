-- Lock the named runs, in the order of the array (sorted by run_id: one lock order everywhere).
-- FOR NO KEY UPDATE and not FOR UPDATE: the key-share locks of foreign keys must pass.
-- $1 run ids. Gives the positions, from 1, of those that are there and locked now.
SELECT w.ord::int4
  FROM unnest($1::text[]) WITH ORDINALITY AS w (run_id, ord)
  JOIN lease.runs r ON r.run_id = w.run_id
 ORDER BY w.ord
   FOR NO KEY UPDATE OF r;
