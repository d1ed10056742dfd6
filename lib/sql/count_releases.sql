-- How many of a run's newest closed attempts ended as $2, without a break, looking at $3 at most.
-- $1 run_id.
SELECT count(*)::int4
  FROM (SELECT bool_and(a.outcome = $2::text) OVER (ORDER BY a.attempt_no DESC) AS unbroken
          FROM lease.run_attempts a
         WHERE a.run_id = $1::text AND a.finished_at IS NOT NULL
         ORDER BY a.attempt_no DESC
         LIMIT $3::int8) s
 WHERE s.unbroken;
