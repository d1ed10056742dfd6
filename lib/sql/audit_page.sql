-- A page of runs after run_id $1, at most $2, and what of them their facts do not explain.
-- The first row holds the figures: 0, last run_id of the page (NULL: it is empty), runs in it,
-- legacy runs among these, NULL … Legacy are runs without attempts that are not pending, but for
-- those that ended without one and say so in an event.
-- Then one row a fault: 1, run_id, newest attempt or execution, NULL, node_id (NULL: the run itself
-- is at fault), status, newest outcome, reason.
WITH page AS MATERIALIZED (
    SELECT r.run_id, r.status
      FROM lease.runs r
     WHERE r.run_id > $1::text
     ORDER BY r.run_id
     LIMIT $2::int8
)
SELECT 0, max(p.run_id), count(*)::int4,
       count(*) FILTER (
           WHERE p.status <> 'pending'
             AND NOT EXISTS (SELECT FROM lease.run_attempts a WHERE a.run_id = p.run_id)
             AND NOT EXISTS (SELECT FROM lease.run_events e
                              WHERE e.run_id = p.run_id AND e.kind = 'run_moved'
                                AND e.to_status = p.status))::int4,
       NULL::text, NULL::text, NULL::text, NULL::text
  FROM page p
UNION ALL
SELECT 1, u.run_id, u.newest_attempt_no, NULL, NULL, u.status, u.newest_outcome, u.reason
  FROM page p JOIN lease.unexplained_runs u ON u.run_id = p.run_id
UNION ALL
SELECT 1, n.run_id, n.newest_attempt_no, NULL, n.node_id, n.state, n.newest_status, n.reason
  FROM page p JOIN lease.unexplained_nodes n ON n.run_id = p.run_id
ORDER BY 1, 2, 5 NULLS FIRST;
