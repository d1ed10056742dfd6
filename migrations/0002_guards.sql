-- 0002 guards: what the database refuses by itself, to the tables' owner too.
--
-- Integrity, not a second state machine: which command is legal when is decided in lib/machine.c.
-- Row guards are AFTER ROW triggers with a WHEN clause: a renewal fails the WHEN and queues
-- nothing, while a BEFORE trigger would lock the tuple first, at the price of a WAL record.
-- They are ENABLE ALWAYS, so that session_replication_role does not lift them. Functions pin
-- search_path and qualify every name.

CREATE FUNCTION lease.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- TG_ARGV[0] says what the rule is.
    RAISE EXCEPTION 'lease.%: % refused: %', TG_TABLE_NAME, lower(TG_OP), TG_ARGV[0]
        USING ERRCODE = 'restrict_violation',
              HINT = 'Facts that are closed stay as they are; state changes go through liblease.';
END
$$;

CREATE TRIGGER attempt_closed_or_identity AFTER UPDATE ON lease.run_attempts
    FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
       OR OLD.run_id IS DISTINCT FROM NEW.run_id
       OR OLD.attempt_no IS DISTINCT FROM NEW.attempt_no
       OR OLD.owner IS DISTINCT FROM NEW.owner
       OR OLD.started_at IS DISTINCT FROM NEW.started_at)
    EXECUTE FUNCTION lease.refuse_change(
        'a closed attempt and the identity of an attempt (run_id, attempt_no, owner, started_at) never change');

CREATE TRIGGER attempt_born_open AFTER INSERT ON lease.run_attempts
    FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION lease.refuse_change(
        'an attempt is opened when it begins; history is not made up afterwards');

-- Whoever opens an attempt holds the run's row until the end, so that nobody moves the run meanwhile
-- past the guard below. liblease has locked it already.
CREATE FUNCTION lease.lock_run() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM lease.runs r WHERE r.run_id = NEW.run_id FOR NO KEY UPDATE;
    RETURN NULL;
END
$$;

CREATE TRIGGER attempt_holds_run AFTER INSERT ON lease.run_attempts
    FOR EACH ROW EXECUTE FUNCTION lease.lock_run();

CREATE TRIGGER attempt_delete AFTER DELETE ON lease.run_attempts
    FOR EACH ROW EXECUTE FUNCTION lease.refuse_change('attempts are never deleted');

CREATE TRIGGER attempt_truncate BEFORE TRUNCATE ON lease.run_attempts
    FOR EACH STATEMENT EXECUTE FUNCTION lease.refuse_change('attempts are never deleted');

CREATE FUNCTION lease.guard_run() RETURNS trigger
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
    IF OLD.run_id IS DISTINCT FROM NEW.run_id OR OLD.created_at IS DISTINCT FROM NEW.created_at
       OR OLD.deadline_at IS DISTINCT FROM NEW.deadline_at
       OR (OLD.cancel_requested_at IS NOT NULL
           AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at) THEN
        RAISE EXCEPTION 'lease.runs: run "%": run_id, created_at, deadline_at and a cancel request are fixed once they are set', OLD.run_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state_version <> OLD.state_version + step THEN
        RAISE EXCEPTION 'lease.runs: run "%": state_version must go from % to %, not to %',
            OLD.run_id, OLD.state_version, OLD.state_version + step, NEW.state_version
            USING ERRCODE = 'check_violation',
                  HINT = 'It grows by exactly one with a change of status, checkpoint or plan. State changes go through liblease.';
    END IF;
    IF OLD.status = 'running' AND NEW.status <> 'running'
       AND EXISTS (SELECT FROM lease.run_attempts a
                    WHERE a.run_id = NEW.run_id AND a.finished_at IS NULL) THEN
        RAISE EXCEPTION 'lease.runs: run "%" cannot become % while an attempt is open', OLD.run_id, NEW.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER run_guard AFTER UPDATE ON lease.runs
    FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
       OR OLD.status IS DISTINCT FROM NEW.status
       OR OLD.state_version IS DISTINCT FROM NEW.state_version
       OR OLD.plan_version IS DISTINCT FROM NEW.plan_version
       OR OLD.current_checkpoint_id IS DISTINCT FROM NEW.current_checkpoint_id
       OR OLD.run_id IS DISTINCT FROM NEW.run_id
       OR OLD.created_at IS DISTINCT FROM NEW.created_at
       OR OLD.deadline_at IS DISTINCT FROM NEW.deadline_at
       OR (OLD.cancel_requested_at IS NOT NULL
           AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at))
    EXECUTE FUNCTION lease.guard_run();

ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_closed_or_identity;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_born_open;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_holds_run;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_delete;
ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_truncate;
ALTER TABLE lease.runs ENABLE ALWAYS TRIGGER run_guard;
