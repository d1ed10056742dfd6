-- One page of the horizon scan: the open attempts after run_id $1, at most $2 of them; of these the
-- ones whose lease is over or ends within $3 microseconds, and the figures of the page.
-- The first row holds the figures: 0, last run_id of the page (NULL: the page is empty), attempts
-- in it, oldest end of a lease that is over, database time at the end of the statement, attempts
-- whose lease is over, shortest ttl in microseconds (leases cut short by their deadline left out).
-- Then one row a lease: 1, run_id, attempt_no, its end, NULL, NULL, NULL.
WITH page AS MATERIALIZED (
    SELECT a.run_id, a.attempt_no, a.heartbeat_at, a.lease_expires_at, a.deadline_at
      FROM lease.run_attempts a
     WHERE a.finished_at IS NULL AND a.run_id > $1::text
     ORDER BY a.run_id
     LIMIT $2::int8
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT 0, max(p.run_id), count(*)::int4,
       min(p.lease_expires_at) FILTER (WHERE p.lease_expires_at <= c.now),
       clock_timestamp(),
       count(*) FILTER (WHERE p.lease_expires_at <= c.now)::int4,
       (extract(epoch FROM min(p.lease_expires_at - p.heartbeat_at)
           FILTER (WHERE p.deadline_at IS NULL OR p.lease_expires_at < p.deadline_at)) * 1000000)::int8
  FROM page p CROSS JOIN clock c
UNION ALL
SELECT 1, p.run_id, p.attempt_no, p.lease_expires_at, NULL, NULL, NULL
  FROM page p CROSS JOIN clock c
 WHERE p.lease_expires_at <= c.now + $3::int8 * interval '1 microsecond';
