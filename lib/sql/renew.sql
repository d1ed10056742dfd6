-- Renew one lease: the hot path. One guarded statement on the attempt alone, because it changes no
-- state: machine.c's row "renew_lease" in SQL. Heap-only: no index holds the columns it writes.
-- $1 run_id, $2 attempt_no, $3 owner: the fencing token. $4 ttl in microseconds.
-- By the clock alone: whether an amnesty holds a lease that is over renew_many.sql finds out, which is
-- tried when this renews nothing.
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
   AND a.lease_expires_at > clock_timestamp()
RETURNING 1, a.heartbeat_at, a.lease_expires_at, a.deadline_at, a.cancel_requested_at;
