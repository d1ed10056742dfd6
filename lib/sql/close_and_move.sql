-- Close attempts and move runs. A close repeats its whole guard: by the owner, or because the lease
-- is over at this moment and no amnesty protects it (the heartbeat); and a run that is to move with its attempt moves only if that attempt's
-- close returned a row.
-- Arrays, one element a run, sorted by run_id:
--   $1 run_id
--   $2 attempt_no to close (NULL: none, the run alone moves)
--   $3 owner who closes it (NULL: nobody, its lease must be over)
--   $4 outcome, $5 error_code, $6 error_message of the attempt
--   $7 status of the run afterwards (NULL: unchanged), $8 whether that is terminal
--   $9 microseconds from now until it is due again (0: as it is)
--   $10 error code, $11 error message of the run
--   $12 status of the run before, for the event
--   $13 what executions that are open under the attempt become; $14 what they were (one word)
-- Gives a row for each attempt closed or run that moves alone (position, closed at, lease's end)
-- and a row for each run moved (position, NULL, NULL, state_version).
WITH want AS MATERIALIZED (
    SELECT *
      FROM unnest($1::text[], $2::int4[], $3::text[], $4::text[], $5::text[], $6::text[],
                  $7::text[], $8::bool[], $9::int8[], $10::text[], $11::text[], $12::text[],
                  $13::text[]) WITH ORDINALITY
        AS w (run_id, attempt_no, owner, outcome, error_code, error_message,
              status, terminal, delay, run_error_code, run_error_message, status_before,
              execution_status, ord)
), beat AS MATERIALIZED (
    -- one row, whether there was ever a beat or not, and read once, not for each attempt
    SELECT h.protect_from, h.amnesty_until, h.beat_at, h.after
      FROM (SELECT) one
      LEFT JOIN lease.heartbeat h ON h.singleton
     LIMIT 1
), closed AS (
    UPDATE lease.run_attempts a
       SET finished_at = clock_timestamp(),
           outcome = w.outcome,
           error_code = w.error_code,
           error_message = w.error_message
      FROM want w CROSS JOIN beat h
     WHERE a.run_id = w.run_id
       AND a.attempt_no = w.attempt_no
       -- open, as by finished_at IS NULL: so that only the primary key fits, whatever the
       -- statistics say
       AND a.outcome IS NULL
       AND CASE WHEN w.owner IS NOT NULL THEN a.owner = w.owner
                WHEN a.lease_expires_at > clock_timestamp() THEN false
                WHEN a.deadline_at <= clock_timestamp() THEN true
                ELSE (a.lease_expires_at > h.protect_from
                      AND (h.amnesty_until > clock_timestamp()
                           OR h.beat_at + h.after < clock_timestamp())) IS NOT TRUE END
    RETURNING w.*, a.finished_at, a.lease_expires_at, a.owner AS attempt_owner
), ready AS (
    SELECT * FROM closed
    UNION ALL
    SELECT w.*, NULL, NULL, NULL FROM want w WHERE w.attempt_no IS NULL
), executions AS (
    UPDATE lease.node_executions e
       SET finished_at = clock_timestamp(), status = c.execution_status
      FROM closed c
     WHERE e.run_id = ANY ($1::text[])
       AND e.run_id = c.run_id
       AND e.finished_at IS NULL
       AND e.run_attempt_no = c.attempt_no
    RETURNING e.run_id, e.node_id, e.attempt_no, e.run_attempt_no, e.operation_id, e.status,
              c.attempt_owner
), nodes AS (
    UPDATE lease.nodes n
       SET state = e.status, state_version = n.state_version + 1, updated_at = clock_timestamp()
      FROM executions e
     WHERE n.run_id = e.run_id AND n.node_id = e.node_id
), moved AS (
    UPDATE lease.runs r
       SET status = w.status,
           state_version = r.state_version + 1,
           not_before = CASE WHEN w.delay > 0
                             THEN clock_timestamp() + w.delay * interval '1 microsecond'
                             ELSE r.not_before END,
           updated_at = clock_timestamp(),
           finished_at = CASE WHEN w.terminal THEN clock_timestamp() END,
           terminal_error_code = w.run_error_code,
           terminal_error_message = w.run_error_message
      FROM ready w
     WHERE r.run_id = w.run_id
       AND w.status IS NOT NULL
    RETURNING w.ord, r.state_version
), events AS (
    INSERT INTO lease.run_events
           (kind, run_id, attempt_no, node_id, execution_no, from_status, to_status, outcome,
            owner, error_code, reference)
    SELECT CASE WHEN w.attempt_no IS NULL THEN 'run_moved' ELSE 'attempt_closed' END,
           w.run_id, w.attempt_no, NULL, NULL, w.status_before, coalesce(w.status, w.status_before),
           w.outcome, w.attempt_owner, coalesce(w.run_error_code, w.error_code), NULL
      FROM ready w
    UNION ALL
    SELECT 'node_finished', e.run_id, e.run_attempt_no, e.node_id, e.attempt_no, $14::text, e.status,
           NULL, e.attempt_owner, NULL, e.operation_id
      FROM executions e
)
SELECT ord::int4, finished_at, lease_expires_at, NULL::int8 FROM ready
UNION ALL
SELECT ord::int4, NULL, NULL, state_version FROM moved;
