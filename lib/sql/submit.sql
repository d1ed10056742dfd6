-- Add a pending run; one of that id that is there stays as it is.
-- $1 run_id, $2 tenant_id, $3 status, $4 microseconds until it is due (0: at once), $5 microseconds
-- until its deadline (0: none). Gives whether it was added, its status and state_version.
WITH added AS (
    INSERT INTO lease.runs (run_id, tenant_id, status, not_before, deadline_at)
    SELECT $1::text, $2::text, $3::text,
           CASE WHEN $4::int8 > 0 THEN t.now + $4::int8 * interval '1 microsecond' END,
           CASE WHEN $5::int8 > 0 THEN t.now + $5::int8 * interval '1 microsecond' END
      FROM (SELECT clock_timestamp() AS now) t
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id, status, state_version
), events AS (
    INSERT INTO lease.run_events (kind, run_id, to_status)
    SELECT 'run_submitted', run_id, status FROM added
)
SELECT true, status, state_version FROM added
UNION ALL
SELECT false, r.status, r.state_version
  FROM lease.runs r
 WHERE r.run_id = $1::text AND NOT EXISTS (SELECT FROM added);
