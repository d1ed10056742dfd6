-- A beat of the reconciler: proof that the database can be written to. One reading of the clock, taken
-- before the statement waits for the row: the subquery's column is volatile, so it is neither
-- flattened nor read again.
-- $1 after, $2 grace: microseconds. $3 grant an amnesty whatever the row says (the clock jumped).
-- A gap is judged by the row's old `after`; so is a clock that went back. The first beat grants
-- nothing.
-- Gives beat_at, protect_from, amnesty_until, and whether an amnesty is in force.
INSERT INTO lease.heartbeat AS h (beat_at, protect_from, amnesty_until, after, grace)
SELECT c.now, c.now, c.now, $1::int8 * interval '1 microsecond', $2::int8 * interval '1 microsecond'
  FROM (SELECT clock_timestamp() AS now) c
    ON CONFLICT (singleton) DO UPDATE
   SET beat_at = excluded.beat_at,
       protect_from = CASE WHEN $3::bool
                             OR excluded.beat_at NOT BETWEEN h.beat_at - h.after AND h.beat_at + h.after
                             OR h.amnesty_until > excluded.beat_at
                           THEN least(h.protect_from, excluded.beat_at)
                           ELSE excluded.beat_at END,
       amnesty_until = CASE WHEN $3::bool
                              OR excluded.beat_at NOT BETWEEN h.beat_at - h.after AND h.beat_at + h.after
                            THEN excluded.beat_at + excluded.grace
                            ELSE h.amnesty_until END,
       after = excluded.after,
       grace = excluded.grace
RETURNING beat_at, protect_from, amnesty_until, amnesty_until > beat_at;
