-- Runs that a reconciler would look at now, after run_id $1, at most $2: open attempts whose lease is
-- over, running runs without an open attempt, passed deadlines; each by its own partial index
-- (deadlines in a step of their own, so that no index in the order of run_id is tempting).
WITH passed AS MATERIALIZED (
    SELECT r.run_id
      FROM lease.runs r
     WHERE r.status IN ('pending', 'waiting')
       AND r.deadline_at IS NOT NULL
       AND r.deadline_at <= (SELECT clock_timestamp())
)
SELECT c.run_id
  FROM ((SELECT a.run_id
           FROM lease.run_attempts a
          WHERE a.finished_at IS NULL AND a.run_id > $1::text
            AND a.lease_expires_at <= clock_timestamp()
          ORDER BY a.run_id
          LIMIT $2::int8)
        UNION
        (SELECT r.run_id
           FROM lease.runs r
          WHERE r.status = 'running' AND r.run_id > $1::text
            AND NOT EXISTS (SELECT FROM lease.run_attempts a
                             WHERE a.run_id = r.run_id AND a.finished_at IS NULL)
          ORDER BY r.run_id
          LIMIT $2::int8)
        UNION
        (SELECT p.run_id FROM passed p WHERE p.run_id > $1::text ORDER BY p.run_id LIMIT $2::int8)) c
 ORDER BY c.run_id
 LIMIT $2::int8;
