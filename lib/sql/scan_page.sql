-- One page of the horizon scan: the open attempts after run_id $1, at most $2 of them; of these the
-- ones to look at within $3 microseconds, because their lease is over or ends by then, and the
-- figures of the page. In an amnesty a lease that is over by the clock still holds, until the amnesty
-- ends; or until a beat comes, where none came for too long (a guess: the time without beats again).
-- The first row holds the figures: 0, last run_id of the page (NULL: the page is empty), attempts
-- in it, oldest end of a lease that is over, database time at the end of the statement, attempts
-- whose lease is over, shortest ttl in microseconds (leases cut short by their deadline left out),
-- attempts that the amnesty protects.
-- Then one row a lease: 1, run_id, attempt_no, when to look, NULL, NULL, NULL, NULL.
WITH page AS MATERIALIZED (
    SELECT a.run_id, a.attempt_no, a.heartbeat_at, a.lease_expires_at, a.deadline_at
      FROM lease.run_attempts a
     WHERE a.finished_at IS NULL AND a.run_id > $1::text
     ORDER BY a.run_id
     LIMIT $2::int8
), clock AS MATERIALIZED (
    SELECT c.now, h.protect_from,
           CASE WHEN h.amnesty_until > c.now THEN h.amnesty_until
                WHEN h.beat_at + h.after < c.now THEN c.now + h.after END AS amnesty_until
      FROM (SELECT clock_timestamp() AS now) c
      LEFT JOIN lease.heartbeat h ON h.singleton
), lease AS MATERIALIZED (
    SELECT p.*, c.now, p.lease_expires_at <= c.now AS ended,
           p.lease_expires_at <= c.now AND c.amnesty_until IS NOT NULL
               AND p.lease_expires_at > c.protect_from
               AND (p.deadline_at IS NULL OR p.deadline_at > c.now) AS pardoned,
           c.amnesty_until
      FROM page p CROSS JOIN clock c
)
SELECT 0, max(l.run_id), count(*)::int4,
       min(l.lease_expires_at) FILTER (WHERE l.ended AND NOT l.pardoned),
       clock_timestamp(),
       count(*) FILTER (WHERE l.ended AND NOT l.pardoned)::int4,
       (extract(epoch FROM min(l.lease_expires_at - l.heartbeat_at)
           FILTER (WHERE l.deadline_at IS NULL OR l.lease_expires_at < l.deadline_at)) * 1000000)::int8,
       count(*) FILTER (WHERE l.pardoned)::int4
  FROM lease l
UNION ALL
SELECT 1, l.run_id, l.attempt_no, CASE WHEN l.pardoned THEN least(l.amnesty_until, l.deadline_at)
                                       ELSE l.lease_expires_at END, NULL, NULL, NULL, NULL
  FROM lease l
 WHERE CASE WHEN l.pardoned THEN least(l.amnesty_until, l.deadline_at) ELSE l.lease_expires_at END
       <= l.now + $3::int8 * interval '1 microsecond';
