-- Note a cancel request on running runs and on their open attempts, where the worker's next renewal
-- finds it. Set once; state_version stays. $1 run ids, sorted.
-- Gives the position of each run that is marked.
WITH marked AS (
    UPDATE lease.runs r
       SET cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
           updated_at = clock_timestamp()
      FROM unnest($1::text[]) WITH ORDINALITY AS w (run_id, ord)
     WHERE r.run_id = w.run_id
    RETURNING r.run_id, r.status, r.cancel_requested_at, w.ord
), events AS (
    INSERT INTO lease.run_events (kind, run_id, attempt_no, from_status, to_status, owner)
    SELECT 'cancel_requested', m.run_id, a.attempt_no, m.status, m.status, a.owner
      FROM marked m
      LEFT JOIN LATERAL (SELECT o.attempt_no, o.owner
                           FROM lease.run_attempts o
                          WHERE o.run_id = m.run_id AND o.finished_at IS NULL
                          LIMIT 1) a ON true
), attempts AS (
    UPDATE lease.run_attempts a
       SET cancel_requested_at = m.cancel_requested_at
      FROM marked m
     WHERE a.run_id = ANY ($1::text[]) AND a.run_id = m.run_id
       AND a.finished_at IS NULL AND a.cancel_requested_at IS NULL
)
SELECT ord::int4 FROM marked;
