-- Open attempts, and move their runs to the status $6 where they are not there yet. Closes come
-- first, in a statement of their own: one statement doing both would trip the unique index on open
-- attempts. A run that still has an open attempt gets none.
-- Arrays, one element a run, sorted by run_id: $1 run_id, $2 attempt_no, $3 owner, $4 ttl in
-- microseconds, $5 trace_id, $7 status of the run before, for the event.
-- Gives, for each attempt opened: position, database time, end of the lease, deadline, when a
-- cancel was requested.
WITH want AS MATERIALIZED (
    SELECT w.*, clock_timestamp() AS now
      FROM unnest($1::text[], $2::int4[], $3::text[], $4::int8[], $5::text[], $7::text[])
           WITH ORDINALITY AS w (run_id, attempt_no, owner, ttl, trace_id, status_before, ord)
), opened AS (
    INSERT INTO lease.run_attempts
           (run_id, attempt_no, owner, started_at, heartbeat_at, lease_expires_at,
            deadline_at, cancel_requested_at, trace_id)
    SELECT w.run_id, w.attempt_no, w.owner, w.now, w.now,
           least(w.now + w.ttl * interval '1 microsecond', r.deadline_at),
           r.deadline_at, r.cancel_requested_at, w.trace_id
      FROM want w
      JOIN lease.runs r ON r.run_id = w.run_id
     WHERE (SELECT a.attempt_no FROM lease.run_attempts a
             WHERE a.run_id = w.run_id AND a.finished_at IS NULL) IS NULL
    RETURNING run_id, heartbeat_at, lease_expires_at, deadline_at, cancel_requested_at
), moved AS (
    UPDATE lease.runs r
       SET status = $6::text, state_version = r.state_version + 1, updated_at = clock_timestamp()
      FROM opened o
     WHERE r.run_id = o.run_id AND r.status <> $6::text
), events AS (
    INSERT INTO lease.run_events (kind, run_id, attempt_no, from_status, to_status, owner)
    SELECT 'attempt_opened', w.run_id, w.attempt_no, w.status_before, $6::text, w.owner
      FROM want w
      JOIN opened o ON o.run_id = w.run_id
)
SELECT w.ord::int4, o.heartbeat_at, o.lease_expires_at, o.deadline_at, o.cancel_requested_at
  FROM want w
  JOIN opened o ON o.run_id = w.run_id;
