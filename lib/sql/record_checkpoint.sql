-- Record a checkpoint and make it the run's current one, if the run still has the expected
-- state_version. $1 run_id, $2 checkpoint_id, $3 number of the run attempt, $4 expected
-- state_version, $5 content_ref (NULL: none), $6 owner.
-- Gives the time and the new state_version; nothing when the version is stale.
WITH checkpoint AS (
    INSERT INTO lease.checkpoints
           (checkpoint_id, run_id, run_attempt_no, state_version, plan_version, content_ref)
    SELECT $2::text, r.run_id, $3::int4, r.state_version + 1, r.plan_version, $5::text
      FROM lease.runs r
     WHERE r.run_id = $1::text AND r.state_version = $4::int8
    RETURNING checkpoint_id, run_id, created_at
), run AS (
    UPDATE lease.runs r
       SET current_checkpoint_id = c.checkpoint_id,
           state_version = r.state_version + 1,
           updated_at = clock_timestamp()
      FROM checkpoint c
     WHERE r.run_id = c.run_id
    RETURNING r.run_id, r.status, r.state_version
), events AS (
    INSERT INTO lease.run_events
           (kind, run_id, attempt_no, from_status, to_status, owner, reference)
    SELECT 'checkpoint_recorded', r.run_id, $3::int4, r.status, r.status, $6::text, $2::text
      FROM run r
)
SELECT c.created_at, r.state_version FROM checkpoint c CROSS JOIN run r;
