-- A run's plan_version grows by one, if the run still has the expected state_version.
-- $1 run_id, $2 number of the run attempt, $3 expected state_version, $4 owner.
-- Gives the time and the new state_version; nothing when the version is stale.
WITH run AS (
    UPDATE lease.runs r
       SET plan_version = r.plan_version + 1,
           state_version = r.state_version + 1,
           updated_at = clock_timestamp()
     WHERE r.run_id = $1::text AND r.state_version = $3::int8
    RETURNING r.run_id, r.status, r.state_version, r.updated_at
), events AS (
    INSERT INTO lease.run_events (kind, run_id, attempt_no, from_status, to_status, owner)
    SELECT 'plan_changed', r.run_id, $2::int4, r.status, r.status, $4::text
      FROM run r
)
SELECT r.updated_at, r.state_version FROM run r;
