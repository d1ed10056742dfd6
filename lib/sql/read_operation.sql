-- What is known of an operation. $1 operation_id; the statuses of its executions: $2 running,
-- $3 succeeded, $4 failed.
-- Gives no row when it was never tried, else: run, node, executions that carry it, whether one is
-- open, how many have an unknown end, whether one succeeded, its output_ref, the newest failure.
SELECT p.run_id, p.node_id,
       count(*)::int4,
       bool_or(e.status = $2::text),
       count(*) FILTER (WHERE e.status NOT IN ($2::text, $3::text, $4::text))::int4,
       bool_or(e.status = $3::text),
       max(e.output_ref) FILTER (WHERE e.status = $3::text),
       (array_agg(e.normalized_error::text ORDER BY e.attempt_no DESC)
           FILTER (WHERE e.status = $4::text))[1]
  FROM lease.operations p
  JOIN lease.node_executions e ON e.operation_id = p.operation_id
 WHERE p.operation_id = $1::text
 GROUP BY p.operation_id;
