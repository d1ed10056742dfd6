-- Renew many leases in one statement; also refreshes a lease within a transaction.
-- Arrays, one element a lease, sorted by run_id (unsorted ones deadlock with each other):
-- $1 run_id, $2 attempt_no, $3 owner, $4 ttl in microseconds.
-- run_id stands there twice so that a planner without statistics, which takes the index on open
-- attempts for empty, still looks the leases up in it.
-- Gives, for each lease renewed: position, database time, end, deadline, cancel request.
UPDATE lease.run_attempts a
   SET heartbeat_at = clock_timestamp(),
       lease_expires_at = greatest(a.lease_expires_at,
                                   least(clock_timestamp() + w.ttl * interval '1 microsecond',
                                         a.deadline_at))
  FROM unnest($1::text[], $2::int4[], $3::text[], $4::int8[]) WITH ORDINALITY
       AS w (run_id, attempt_no, owner, ttl, ord)
 WHERE a.run_id = ANY ($1::text[])
   AND a.run_id = w.run_id
   AND a.finished_at IS NULL
   AND a.attempt_no = w.attempt_no
   AND a.owner = w.owner
   AND CASE WHEN a.lease_expires_at > clock_timestamp() THEN true
            WHEN a.deadline_at <= clock_timestamp() THEN false
            ELSE EXISTS (SELECT FROM lease.heartbeat h
                          WHERE h.singleton AND a.lease_expires_at > h.protect_from
                            AND (h.amnesty_until > clock_timestamp()
                                 OR h.beat_at + h.after < clock_timestamp())) END
RETURNING w.ord::int4, a.heartbeat_at, a.lease_expires_at, a.deadline_at, a.cancel_requested_at;
