-- Runs that fit all of what is given, newest first; the literals are those of the partial indexes,
-- and a branch whose statuses are not asked for is not read.
-- $1 statuses, $2 tenant_id, $3 terminal_error_code, $4 created within so many microseconds,
-- $5 owner of the open attempt, or its stable part, $6 only those whose open attempt's lease is
-- over, $7 only those that come after this run, $8 at most so many; $2 to $5 and $7 NULL: any.
-- $9 the outcome that is a loss.
WITH wanted AS (
    SELECT r.* FROM lease.runs r WHERE r.status = 'pending' AND 'pending' = ANY ($1::text[])
    UNION ALL
    SELECT r.* FROM lease.runs r WHERE r.status = 'running' AND 'running' = ANY ($1::text[])
    UNION ALL
    SELECT r.* FROM lease.runs r WHERE r.status = 'waiting' AND 'waiting' = ANY ($1::text[])
    UNION ALL
    SELECT r.* FROM lease.runs r
     WHERE r.status = ANY ($1::text[]) AND r.status NOT IN ('pending', 'running', 'waiting')
       AND NOT $1::text[] <@ ARRAY['pending', 'running', 'waiting']
), chosen AS (
    SELECT w.*, o.attempt_no AS open_attempt_no, o.owner, o.lease_expires_at
      FROM wanted w
      LEFT JOIN lease.run_attempts o ON o.run_id = w.run_id AND o.finished_at IS NULL
     WHERE ($2::text IS NULL OR w.tenant_id = $2::text)
       AND ($3::text IS NULL OR w.terminal_error_code = $3::text)
       AND ($4::int8 IS NULL OR w.created_at > clock_timestamp() - $4::int8 * interval '1 microsecond')
       AND ($5::text IS NULL OR o.owner = $5::text OR starts_with(o.owner, $5::text || ':'))
       AND (NOT $6::bool OR o.lease_expires_at <= clock_timestamp())
       AND ($7::text IS NULL OR (w.created_at, w.run_id) <
            (SELECT b.created_at, b.run_id FROM lease.runs b WHERE b.run_id = $7::text))
     ORDER BY w.created_at DESC, w.run_id DESC
     LIMIT $8::int8
)
SELECT clock_timestamp(), c.run_id, c.tenant_id, c.status, c.state_version, c.created_at,
       c.updated_at, c.not_before, c.deadline_at, c.cancel_requested_at, c.finished_at,
       c.terminal_error_code, c.open_attempt_no, c.owner, c.lease_expires_at,
       a.attempts, a.losses
  FROM chosen c
 CROSS JOIN LATERAL (
       SELECT count(*)::int4 AS attempts, count(*) FILTER (WHERE t.outcome = $9::text)::int4 AS losses
         FROM lease.run_attempts t WHERE t.run_id = c.run_id) a
 ORDER BY c.created_at DESC, c.run_id DESC;
