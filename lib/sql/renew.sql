-- Renew one lease: the hot path. One guarded statement on the attempt alone, because it changes no
-- state: machine.c's row "renew_lease" in SQL. Heap-only: no index holds the columns it writes.
-- $1 run_id, $2 attempt_no, $3 owner: the fencing token. $4 ttl in microseconds.
-- The heartbeat is read only where the lease is over by the clock: in an amnesty it still holds.
-- A lease never gets shorter and never reaches past the deadline (least ignores NULL).
UPDATE lease.run_attempts a
   SET heartbeat_at = clock_timestamp(),
       lease_expires_at = greatest(a.lease_expires_at,
                                   least(clock_timestamp() + $4::int8 * interval '1 microsecond',
                                         a.deadline_at))
 WHERE a.run_id = $1::text
   AND a.finished_at IS NULL
   AND a.attempt_no = $2::int4
   AND a.owner = $3::text
   AND CASE WHEN a.lease_expires_at > clock_timestamp() THEN true
            WHEN a.deadline_at <= clock_timestamp() THEN false
            ELSE EXISTS (SELECT FROM lease.heartbeat h
                          WHERE h.singleton AND a.lease_expires_at > h.protect_from
                            AND (h.amnesty_until > clock_timestamp()
                                 OR h.beat_at + h.after < clock_timestamp())) END
RETURNING 1, a.heartbeat_at, a.lease_expires_at, a.deadline_at, a.cancel_requested_at;
