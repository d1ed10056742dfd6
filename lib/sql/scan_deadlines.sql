-- Pending and waiting runs whose deadline has passed, after run_id $1, at most $2. The literals are
-- those of runs_deadline_idx; the clock is read once, in a subquery, so that the index can be asked
-- for it; and the order comes after, so that no index in that order is tempting.
-- Gives rows as scan_orphans.sql does.
WITH passed AS MATERIALIZED (
    SELECT r.run_id
      FROM lease.runs r
     WHERE r.status IN ('pending', 'waiting')
       AND r.deadline_at IS NOT NULL
       AND r.deadline_at <= (SELECT clock_timestamp())
), page AS MATERIALIZED (
    SELECT p.run_id FROM passed p WHERE p.run_id > $1::text ORDER BY p.run_id LIMIT $2::int8
)
SELECT 0, max(p.run_id), count(*)::int4 FROM page p
UNION ALL
SELECT 1, p.run_id, NULL FROM page p;
