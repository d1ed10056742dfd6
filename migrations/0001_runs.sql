-- 0001 runs: the runs, their attempts, and what explains the one by the other.
--
-- All times are the database's clock (clock_timestamp()), never a worker's. Identifiers are text
-- COLLATE "C" of 1 to 255 bytes: longer keys do not fit a B-tree page, and byte order is the order
-- in which every transaction locks.

CREATE SCHEMA IF NOT EXISTS lease;

CREATE TABLE lease.schema_migrations (
    version     integer     PRIMARY KEY,
    name        text        NOT NULL,
    checksum    text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE lease.schema_migrations IS
    'Applied migrations; checksum is the SHA-256 of the file. Written by leasectl migrate.';

CREATE DOMAIN lease.identifier AS text COLLATE "C"
    CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN lease.message AS text
    CHECK (octet_length(VALUE) <= 16384);
CREATE DOMAIN lease.instant AS timestamptz
    CHECK (isfinite(VALUE));

-- A run is one logical piece of work. Its row is the current, materialized state: what happened
-- stands in run_attempts, and what a lost worker leads to is the reconciler's policy.
CREATE TABLE lease.runs (
    run_id                  lease.identifier PRIMARY KEY,
    tenant_id               lease.identifier NOT NULL DEFAULT 'default',
    status                  text COLLATE "C" NOT NULL DEFAULT 'pending',
    state_version           bigint           NOT NULL DEFAULT 1,
    plan_version            bigint           NOT NULL DEFAULT 1,
    current_checkpoint_id   lease.identifier,
    not_before              lease.instant,
    deadline_at             lease.instant,
    cancel_requested_at     lease.instant,
    created_at              lease.instant    NOT NULL DEFAULT clock_timestamp(),
    updated_at              lease.instant    NOT NULL DEFAULT clock_timestamp(),
    finished_at             lease.instant,
    terminal_error_code     lease.identifier,
    terminal_error_message  lease.message,
    CONSTRAINT runs_status_known CHECK (status IN
        ('pending', 'running', 'waiting', 'completed', 'failed', 'cancelled', 'interrupted')),
    CONSTRAINT runs_finished_is_terminal CHECK
        ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled', 'interrupted'))),
    CONSTRAINT runs_error_is_terminal CHECK
        (finished_at IS NOT NULL OR (terminal_error_code IS NULL AND terminal_error_message IS NULL)),
    CONSTRAINT runs_versions_positive CHECK (state_version >= 1 AND plan_version >= 1)
) WITH (fillfactor = 80);

-- Claims take the oldest pending run; a requeued run keeps its age and so its place.
CREATE INDEX runs_pending_idx ON lease.runs (created_at, run_id) WHERE status = 'pending';
-- Orphans: running runs without an open attempt (merge anti join with run_attempts_open_idx).
CREATE INDEX runs_running_idx ON lease.runs (run_id) WHERE status = 'running';
CREATE INDEX runs_waiting_idx ON lease.runs (run_id) WHERE status = 'waiting';
-- Deadlines of runs that no lease ends.
CREATE INDEX runs_deadline_idx ON lease.runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND status IN ('pending', 'waiting');

COMMENT ON TABLE lease.runs IS 'One row a run: its current state. Written by liblease alone.';
COMMENT ON COLUMN lease.runs.state_version IS
    'One more at each change of status, checkpoint or plan; compare before you write.';
COMMENT ON COLUMN lease.runs.deadline_at IS 'Fixed at submission; no lease reaches past it.';

-- An attempt is one execution ownership of a run by one owner. While it is open (finished_at IS
-- NULL) the row is the whole lease record, so that a renewal needs no other row; once it is closed
-- it never changes again. No index holds lease_expires_at or heartbeat_at: a renewal is a
-- heap-only update. fillfactor leaves room for it on the page.
CREATE TABLE lease.run_attempts (
    run_id               lease.identifier NOT NULL REFERENCES lease.runs (run_id),
    attempt_no           integer          NOT NULL,
    owner                lease.identifier NOT NULL,
    started_at           lease.instant    NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at         lease.instant    NOT NULL DEFAULT clock_timestamp(),
    lease_expires_at     lease.instant    NOT NULL,
    deadline_at          lease.instant,
    cancel_requested_at  lease.instant,
    finished_at          lease.instant,
    outcome              text COLLATE "C",
    error_code           lease.identifier,
    error_message        lease.message,
    trace_id             lease.identifier,
    PRIMARY KEY (run_id, attempt_no),
    CONSTRAINT run_attempts_numbered CHECK (attempt_no >= 1),
    CONSTRAINT run_attempts_outcome_known CHECK (outcome IN
        ('completed', 'failed', 'cancelled', 'interrupted', 'retry_released', 'lease_expired')),
    CONSTRAINT run_attempts_finished_has_outcome CHECK
        ((finished_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT run_attempts_error_is_finished CHECK
        (finished_at IS NOT NULL OR (error_code IS NULL AND error_message IS NULL))
) WITH (fillfactor = 80);

-- Finds the open attempt of a run, whatever the size of the history, and makes a second one
-- impossible.
CREATE UNIQUE INDEX run_attempts_open_idx ON lease.run_attempts (run_id) WHERE finished_at IS NULL;

COMMENT ON TABLE lease.run_attempts IS
    'One row an attempt: a fact. Closed ones are never changed or deleted; a run without any is legacy.';
COMMENT ON COLUMN lease.run_attempts.lease_expires_at IS
    'The lease: until then, by the database clock, the owner may execute the run.';

-- Every run whose status its attempts do not explain. Must be empty. A run without attempt rows
-- that is running, waiting or terminal is legacy: nothing can be said of it, and nothing is.
CREATE VIEW lease.unexplained_runs AS
SELECT r.run_id, r.status, r.terminal_error_code, n.attempt_no AS newest_attempt_no,
       n.outcome AS newest_outcome, n.error_code AS newest_error_code,
       CASE
           WHEN a.attempts IS DISTINCT FROM n.attempt_no THEN 'attempt numbers have a gap'
           WHEN n.finished_at IS NULL AND r.status <> 'running' THEN 'open attempt of a run that is not running'
           ELSE 'the newest attempt does not lead to this status'
       END AS reason
  FROM lease.runs r
 CROSS JOIN LATERAL (
       SELECT count(*) AS attempts FROM lease.run_attempts c WHERE c.run_id = r.run_id) a
 CROSS JOIN LATERAL (
       SELECT l.* FROM lease.run_attempts l WHERE l.run_id = r.run_id
        ORDER BY l.attempt_no DESC LIMIT 1) n
 WHERE a.attempts IS DISTINCT FROM n.attempt_no
    OR CASE
           -- an open attempt belongs to a running run
           WHEN n.finished_at IS NULL THEN r.status <> 'running'
           -- the owner ended the run: the run says the same word
           WHEN n.outcome IN ('completed', 'failed', 'cancelled') THEN r.status <> n.outcome
           WHEN n.outcome = 'interrupted' AND n.error_code IS DISTINCT FROM 'suspended'
               THEN r.status <> 'interrupted'
           -- suspended: waits, or was resumed, or ended without an owner
           WHEN n.outcome = 'interrupted' THEN r.status NOT IN ('waiting', 'pending', 'cancelled', 'failed')
           WHEN n.outcome = 'retry_released' THEN r.status NOT IN ('pending', 'cancelled', 'failed')
           -- lost: left as it was (policy record), requeued, cancelled, or failed
           WHEN n.outcome = 'lease_expired' THEN r.status NOT IN ('running', 'pending', 'cancelled', 'failed')
           ELSE true
       END;
COMMENT ON VIEW lease.unexplained_runs IS
    'Runs whose status does not follow from their attempts. Must be empty.';
