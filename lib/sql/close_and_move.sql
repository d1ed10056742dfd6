-- Close attempts and move runs. A close repeats its whole guard: by the owner, or because the lease
-- is over at this moment; and a run that is to move with its attempt moves only if that attempt's
-- close returned a row.
-- Arrays, one element a run, sorted by run_id:
--   $1 run_id
--   $2 attempt_no to close (NULL: none, the run alone moves)
--   $3 owner who closes it (NULL: nobody, its lease must be over)
--   $4 outcome, $5 error_code, $6 error_message of the attempt
--   $7 status of the run afterwards (NULL: unchanged), $8 whether that is terminal
--   $9 microseconds from now until it is due again (0: as it is)
--   $10 error code, $11 error message of the run
-- Gives a row for each attempt closed or run that moves alone (position, closed at, lease's end)
-- and a row for each run moved (position, NULL, NULL, state_version).
WITH want AS MATERIALIZED (
    SELECT *
      FROM unnest($1::text[], $2::int4[], $3::text[], $4::text[], $5::text[], $6::text[],
                  $7::text[], $8::bool[], $9::int8[], $10::text[], $11::text[]) WITH ORDINALITY
        AS w (run_id, attempt_no, owner, outcome, error_code, error_message,
              status, terminal, delay, run_error_code, run_error_message, ord)
), closed AS (
    UPDATE lease.run_attempts a
       SET finished_at = clock_timestamp(),
           outcome = w.outcome,
           error_code = w.error_code,
           error_message = w.error_message
      FROM want w
     WHERE a.run_id = w.run_id
       AND a.finished_at IS NULL
       AND a.attempt_no = w.attempt_no
       AND CASE WHEN w.owner IS NULL THEN a.lease_expires_at <= clock_timestamp()
                ELSE a.owner = w.owner END
    RETURNING w.*, a.finished_at, a.lease_expires_at
), ready AS (
    SELECT * FROM closed
    UNION ALL
    SELECT w.*, NULL, NULL FROM want w WHERE w.attempt_no IS NULL
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
)
SELECT ord::int4, finished_at, lease_expires_at, NULL::int8 FROM ready
UNION ALL
SELECT ord::int4, NULL, NULL, state_version FROM moved;
