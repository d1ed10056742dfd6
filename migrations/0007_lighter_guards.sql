-- 0007 lighter guards: what 0001 and 0002 refuse, refused at a lower price.
--
-- PostgreSQL reads every CHECK constraint of a table, and every WHEN of a trigger that may fire, anew
-- for each statement that writes to it: a quarter of what a renewal cost. A trigger on columns
-- (UPDATE OF) is left out altogether by a statement that does not set them, and a renewal sets
-- heartbeat_at and lease_expires_at alone. So the rules on what an attempt says when it closes stand in
-- such triggers; what an attempt must be at its start stands in one on INSERT, because it never
-- changes afterwards. docs/decisions/0006-guards-that-renewals-do-not-meet.md has the figures.

ALTER TABLE lease.run_attempts
    DROP CONSTRAINT run_attempts_numbered,
    DROP CONSTRAINT run_attempts_outcome_known,
    DROP CONSTRAINT run_attempts_finished_has_outcome,
    DROP CONSTRAINT run_attempts_error_is_finished;

-- As a CHECK constraint says it.
CREATE FUNCTION lease.refuse_values() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- TG_ARGV[0] says what the rule is.
    RAISE EXCEPTION 'lease.%: % refused: %', TG_TABLE_NAME, lower(TG_OP), TG_ARGV[0]
        USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
              CONSTRAINT = TG_NAME,
              HINT = 'State changes go through liblease.';
END
$$;

DROP TRIGGER attempt_closed_or_identity ON lease.run_attempts;

CREATE TRIGGER attempt_closed AFTER UPDATE ON lease.run_attempts
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION lease.refuse_change('a closed attempt never changes');

CREATE TRIGGER attempt_identity
    AFTER UPDATE OF run_id, attempt_no, owner, started_at ON lease.run_attempts
    FOR EACH ROW
    WHEN (OLD.run_id IS DISTINCT FROM NEW.run_id
       OR OLD.attempt_no IS DISTINCT FROM NEW.attempt_no
       OR OLD.owner IS DISTINCT FROM NEW.owner
       OR OLD.started_at IS DISTINCT FROM NEW.started_at)
    EXECUTE FUNCTION lease.refuse_change(
        'the identity of an attempt (run_id, attempt_no, owner, started_at) never changes');

CREATE TRIGGER attempt_end
    AFTER UPDATE OF finished_at, outcome, error_code, error_message ON lease.run_attempts
    FOR EACH ROW
    WHEN ((NEW.finished_at IS NULL) <> (NEW.outcome IS NULL)
       OR NEW.finished_at IS NULL AND (NEW.error_code IS NOT NULL OR NEW.error_message IS NOT NULL)
       OR NEW.outcome NOT IN
          ('completed', 'failed', 'cancelled', 'interrupted', 'retry_released', 'lease_expired'))
    EXECUTE FUNCTION lease.refuse_values(
        'finished_at and outcome are set together, an error only with them, and the outcome is one of completed, failed, cancelled, interrupted, retry_released, lease_expired');

CREATE TRIGGER attempt_start AFTER INSERT ON lease.run_attempts
    FOR EACH ROW
    WHEN (NEW.attempt_no < 1
       OR NEW.finished_at IS NULL
          AND (NEW.outcome IS NOT NULL OR NEW.error_code IS NOT NULL OR NEW.error_message IS NOT NULL))
    EXECUTE FUNCTION lease.refuse_values(
        'attempts are numbered from 1, and begin without outcome and error');

-- The guard on a run's row looked for an open attempt by a call of its own for each run moved. Now
-- it is called only to refuse, ...
CREATE OR REPLACE FUNCTION lease.guard_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    step bigint := (OLD.status IS DISTINCT FROM NEW.status
                 OR OLD.plan_version IS DISTINCT FROM NEW.plan_version
                 OR OLD.current_checkpoint_id IS DISTINCT FROM NEW.current_checkpoint_id)::integer;
BEGIN
    IF OLD.finished_at IS NOT NULL THEN
        RAISE EXCEPTION 'lease.runs: run "%" is % and does not change any more', OLD.run_id, OLD.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state_version <> OLD.state_version + step THEN
        RAISE EXCEPTION 'lease.runs: run "%": state_version must go from % to %, not to %',
            OLD.run_id, OLD.state_version, OLD.state_version + step, NEW.state_version
            USING ERRCODE = 'check_violation',
                  HINT = 'It grows by exactly one with a change of status, checkpoint or plan. State changes go through liblease.';
    END IF;
    RAISE EXCEPTION 'lease.runs: run "%": run_id, created_at, deadline_at and a cancel request are fixed once they are set', OLD.run_id
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE OR REPLACE TRIGGER run_guard AFTER UPDATE ON lease.runs
    FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
       OR NEW.state_version <> OLD.state_version
              + (OLD.status IS DISTINCT FROM NEW.status
              OR OLD.plan_version IS DISTINCT FROM NEW.plan_version
              OR OLD.current_checkpoint_id IS DISTINCT FROM NEW.current_checkpoint_id)::integer
       OR OLD.run_id IS DISTINCT FROM NEW.run_id
       OR OLD.created_at IS DISTINCT FROM NEW.created_at
       OR OLD.deadline_at IS DISTINCT FROM NEW.deadline_at
       OR (OLD.cancel_requested_at IS NOT NULL
           AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at))
    EXECUTE FUNCTION lease.guard_run();

-- ... and one query looks at all runs that a statement moved. CASE keeps the order: the open attempt
-- by its index, and only for a run that has one (a leftover) what the run was before. A run whose
-- run_id changed has no row in `before`, and the guard above refuses it.
CREATE FUNCTION lease.guard_runs_moved() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad record;
BEGIN
    SELECT n.run_id, n.status INTO bad
      FROM after n
     WHERE CASE WHEN n.status = 'running' THEN false
                WHEN (SELECT true FROM lease.run_attempts a
                       WHERE a.run_id = n.run_id AND a.finished_at IS NULL)
                THEN (SELECT b.status FROM before b WHERE b.run_id = n.run_id) = 'running' END
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'lease.runs: run "%" cannot become % while an attempt is open', bad.run_id, bad.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_moved AFTER UPDATE ON lease.runs
    REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION lease.guard_runs_moved();

ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_closed;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_identity;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_end;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_start;
ALTER TABLE lease.runs ENABLE ALWAYS TRIGGER run_guard;
ALTER TABLE lease.runs ENABLE ALWAYS TRIGGER runs_moved;

DO $$
DECLARE
    name text;
BEGIN
    -- to whom the schema went, as in 0004
    FOREACH name IN ARRAY ARRAY['refuse_values', 'guard_runs_moved'] LOOP
        EXECUTE (SELECT pg_catalog.format('ALTER FUNCTION lease.%I() OWNER TO %I', name,
                                          pg_catalog.pg_get_userbyid(n.nspowner))
                   FROM pg_catalog.pg_namespace n WHERE n.nspname = 'lease');
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'lease: what this migration added stays with %', current_user;
END
$$;
