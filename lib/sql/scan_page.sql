-- One page of the horizon scan: the open attempts after run_id $1, at most $2 of them; of these the
-- ones to look at within $3 microseconds, because their lease is over or ends by then, and the
-- figures of the page. In an amnesty a lease that is over by the clock still holds, until the amnesty
-- ends; or until a beat comes, where none came for too long (a guess: the time without beats again).
-- The first row holds the figures: 0, last run_id of the page (NULL: the page is empty), attempts
-- in it, oldest end of a lease that is over, database time at the end of the statement, attempts
-- whose lease is over, shortest ttl in microseconds (leases cut short by their deadline left out),
-- attempts that the amnesty protects.
-- Then one row a lease: 1, run_id, attempt_no, when to look, NULL, NULL, NULL, NULL.
-- Every scan reads every lease, and hardly any is to be looked at: so the rows pass by and only what
-- is listed is kept. Keeping whole pages cost four times as much, most of it for memory that the
-- server gets from the system and gives back with each page. OFFSET 0: worked out once for each row.
-- LIMIT 1: the planner is to know that the clock is one row, or it would keep the page to join it.
WITH clock AS MATERIALIZED (
    SELECT c.now, c.now + $3::int8 * interval '1 microsecond' AS horizon, h.protect_from,
           CASE WHEN h.amnesty_until > c.now THEN h.amnesty_until
                WHEN h.beat_at + h.after < c.now THEN c.now + h.after END AS amnesty_until
      FROM (SELECT clock_timestamp() AS now) c
      LEFT JOIN lease.heartbeat h ON h.singleton
     LIMIT 1
), attempt AS (
    SELECT a.run_id, a.attempt_no, a.heartbeat_at, a.lease_expires_at, a.deadline_at
      FROM lease.run_attempts a
     WHERE a.finished_at IS NULL AND a.run_id > $1::text
     ORDER BY a.run_id
     LIMIT $2::int8
), lease AS (
    SELECT a.*, c.horizon, c.amnesty_until, a.lease_expires_at <= c.now AS ended,
           a.lease_expires_at <= c.now AND c.amnesty_until IS NOT NULL
               AND a.lease_expires_at > c.protect_from
               AND (a.deadline_at IS NULL OR a.deadline_at > c.now) AS pardoned
      FROM clock c CROSS JOIN attempt a
    OFFSET 0
), page AS MATERIALIZED (
    SELECT max(l.run_id) AS last_run_id, count(*)::int4 AS attempts,
           min(l.lease_expires_at) FILTER (WHERE l.ended AND NOT l.pardoned) AS oldest,
           count(*) FILTER (WHERE l.ended AND NOT l.pardoned)::int4 AS over,
           min(l.lease_expires_at - l.heartbeat_at)
               FILTER (WHERE l.deadline_at IS NULL OR l.lease_expires_at < l.deadline_at) AS ttl,
           count(*) FILTER (WHERE l.pardoned)::int4 AS pardoned,
           array_agg(l.run_id::text) FILTER (WHERE l.look_at <= l.horizon) AS run_ids,
           array_agg(l.attempt_no) FILTER (WHERE l.look_at <= l.horizon) AS attempt_nos,
           array_agg(l.look_at) FILTER (WHERE l.look_at <= l.horizon) AS look_at
      FROM (SELECT s.*, CASE WHEN s.pardoned THEN least(s.amnesty_until, s.deadline_at)
                             ELSE s.lease_expires_at END AS look_at
              FROM lease s
            OFFSET 0) l
)
SELECT 0, p.last_run_id, p.attempts, p.oldest, clock_timestamp(), p.over,
       (extract(epoch FROM p.ttl) * 1000000)::int8, p.pardoned
  FROM page p
UNION ALL
SELECT 1, unnest(p.run_ids), unnest(p.attempt_nos), unnest(p.look_at), NULL, NULL, NULL, NULL
  FROM page p;
