-- What lease_decide needs to know of the runs that are locked. A statement of its own, so that its
-- snapshot is newer than the locks.
-- The clock and the heartbeat are read once (LIMIT 1: nothing may be pulled up into the join, which
-- would read the heartbeat for each run; that was a third of the whole).
-- Arrays, one element a run: $1 run_id, $2 attempt_no of the token (NULL: none), $3 owner (NULL:
-- none). $4 how many of the newest closed attempts to look at for losses (0: none), $5 the outcome
-- that is a loss.
SELECT w.ord::int4,
       t.now,
       r.status, r.state_version, r.not_before, r.deadline_at, r.cancel_requested_at,
       o.attempt_no, o.owner, o.lease_expires_at,
       n.attempt_no, n.owner, n.outcome, n.error_code,
       w.owner IS NOT NULL AND w.attempt_no IS NULL
           AND EXISTS (SELECT FROM lease.run_attempts c
                        WHERE c.run_id = w.run_id AND c.owner = w.owner AND c.finished_at IS NOT NULL),
       -- only who may open an attempt needs a number for it
       CASE WHEN w.owner IS NOT NULL
            THEN (SELECT max(m.attempt_no) FROM lease.run_attempts m WHERE m.run_id = w.run_id)
       END,
       -- before the first attempt there is none to look at
       CASE WHEN o.attempt_no = 1 THEN 0
            ELSE (SELECT count(*)::int4
                    FROM (SELECT bool_and(l.outcome = $5::text) OVER (ORDER BY l.attempt_no DESC)
                                 AS unbroken
                            FROM lease.run_attempts l
                           WHERE l.run_id = w.run_id AND l.finished_at IS NOT NULL
                           ORDER BY l.attempt_no DESC
                           LIMIT $4::int8) s
                   WHERE s.unbroken)
       END,
       r.current_checkpoint_id,
       t.beat_at, t.protect_from, t.amnesty_until, t.after
  FROM (SELECT clock_timestamp() AS now, h.beat_at, h.protect_from, h.amnesty_until,
               (extract(epoch FROM h.after) * 1000000)::int8 AS after
          FROM (SELECT) one
          LEFT JOIN lease.heartbeat h ON h.singleton
         LIMIT 1) t
 CROSS JOIN unnest($1::text[], $2::int4[], $3::text[]) WITH ORDINALITY AS w (run_id, attempt_no, owner, ord)
  JOIN lease.runs r ON r.run_id = w.run_id
  LEFT JOIN LATERAL (SELECT a.attempt_no, a.owner, a.lease_expires_at
                       FROM lease.run_attempts a
                      WHERE a.run_id = w.run_id AND a.finished_at IS NULL
                      LIMIT 1) o ON true
  LEFT JOIN lease.run_attempts n ON n.run_id = w.run_id AND n.attempt_no = w.attempt_no;
