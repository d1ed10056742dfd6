-- 0004 runtime facts: nodes and their executions, operations, contents, checkpoints, events.
--
-- The same division as between runs and attempts: node_executions are facts that never change once
-- they are closed, nodes hold where a node is now, and the one is always explained by the other.
-- Payloads stay outside: a content_ref names them.

CREATE DOMAIN lease.content_reference AS text COLLATE "C"
    CHECK (octet_length(VALUE) BETWEEN 1 AND 1024);

-- What a payload is known by. The bytes lie in the store that the reference names. Immutable.
CREATE TABLE lease.contents (
    content_ref     lease.content_reference PRIMARY KEY,
    hash            text COLLATE "C"        NOT NULL,
    media_type      lease.identifier        NOT NULL,
    size_bytes      bigint                  NOT NULL,
    schema_version  integer                 NOT NULL DEFAULT 1,
    created_at      lease.instant           NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT contents_hash_known CHECK (hash ~ '^sha256:[0-9a-f]{64}$'),
    CONSTRAINT contents_size_positive CHECK (size_bytes >= 0),
    CONSTRAINT contents_schema_version_positive CHECK (schema_version >= 1)
);

-- A node is one logical step of a run; its state is the status of its newest execution.
CREATE TABLE lease.nodes (
    run_id         lease.identifier NOT NULL REFERENCES lease.runs (run_id),
    node_id        lease.identifier NOT NULL,
    state          text COLLATE "C" NOT NULL,
    state_version  bigint           NOT NULL DEFAULT 1,
    created_at     lease.instant    NOT NULL DEFAULT clock_timestamp(),
    updated_at     lease.instant    NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, node_id),
    CONSTRAINT nodes_state_known CHECK (state IN
        ('running', 'succeeded', 'failed', 'lease_expired', 'abandoned'))
) WITH (fillfactor = 80);
COMMENT ON TABLE lease.nodes IS 'One row a node: the status of its newest execution. Written by liblease alone.';

-- An operation is the identity of an outside side effect, an idempotency key: stable across
-- retries, so one row here and any number of executions that carry it.
CREATE TABLE lease.operations (
    operation_id  lease.identifier PRIMARY KEY,
    run_id        lease.identifier NOT NULL,
    node_id       lease.identifier NOT NULL,
    created_at    lease.instant    NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (run_id, node_id, operation_id), -- an execution carries an operation of its own node
    FOREIGN KEY (run_id, node_id) REFERENCES lease.nodes (run_id, node_id)
);

-- One execution of a node, under the run attempt that executed it: (run_id, run_attempt_no) says
-- which worker it was and in which lease.
CREATE TABLE lease.node_executions (
    run_id            lease.identifier NOT NULL,
    node_id           lease.identifier NOT NULL,
    attempt_no        integer          NOT NULL,
    run_attempt_no    integer          NOT NULL,
    operation_id      lease.identifier,
    status            text COLLATE "C" NOT NULL DEFAULT 'running',
    started_at        lease.instant    NOT NULL DEFAULT clock_timestamp(),
    finished_at       lease.instant,
    input_ref         lease.content_reference REFERENCES lease.contents (content_ref),
    output_ref        lease.content_reference REFERENCES lease.contents (content_ref),
    normalized_error  lease.identifier,
    error_message     lease.message,
    trace_id          lease.identifier,
    PRIMARY KEY (run_id, node_id, attempt_no),
    FOREIGN KEY (run_id, node_id) REFERENCES lease.nodes (run_id, node_id),
    FOREIGN KEY (run_id, run_attempt_no) REFERENCES lease.run_attempts (run_id, attempt_no),
    CONSTRAINT node_executions_operation_fkey FOREIGN KEY (run_id, node_id, operation_id)
        REFERENCES lease.operations (run_id, node_id, operation_id),
    CONSTRAINT node_executions_numbered CHECK (attempt_no >= 1),
    CONSTRAINT node_executions_status_known CHECK (status IN
        ('running', 'succeeded', 'failed', 'lease_expired', 'abandoned')),
    CONSTRAINT node_executions_finished_has_status CHECK
        ((finished_at IS NULL) = (status = 'running')),
    CONSTRAINT node_executions_failed_has_error CHECK
        ((status = 'failed') = (normalized_error IS NOT NULL)),
    CONSTRAINT node_executions_output_when_closed CHECK
        (output_ref IS NULL OR status IN ('succeeded', 'failed'))
) WITH (fillfactor = 80);

-- Makes a second open execution of a node impossible, and finds those that close with an attempt.
CREATE UNIQUE INDEX node_executions_open_idx ON lease.node_executions (run_id, node_id)
    WHERE finished_at IS NULL;
CREATE INDEX node_executions_operation_idx ON lease.node_executions (operation_id)
    WHERE operation_id IS NOT NULL;
COMMENT ON TABLE lease.node_executions IS
    'One row an execution of a node: a fact. Closed ones are never changed or deleted.';

-- A checkpoint is a boundary from which a run can be resumed. Immutable.
CREATE TABLE lease.checkpoints (
    checkpoint_id   lease.identifier PRIMARY KEY,
    run_id          lease.identifier NOT NULL,
    run_attempt_no  integer          NOT NULL,
    state_version   bigint           NOT NULL,
    plan_version    bigint           NOT NULL,
    content_ref     lease.content_reference REFERENCES lease.contents (content_ref),
    created_at      lease.instant    NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (run_id, checkpoint_id),
    FOREIGN KEY (run_id, run_attempt_no) REFERENCES lease.run_attempts (run_id, attempt_no)
);
ALTER TABLE lease.runs ADD FOREIGN KEY (run_id, current_checkpoint_id)
    REFERENCES lease.checkpoints (run_id, checkpoint_id);

-- The record of every transition, written in the transaction that makes it (an outbox). Renewals
-- write none. No foreign keys: an event stands for itself. txid lets a consumer follow commits: it
-- asks for what is visible in a newer snapshot and was not in an older one, because neither
-- event_id nor txid is the order in which transactions commit.
CREATE TABLE lease.run_events (
    event_id      bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txid          xid8             NOT NULL DEFAULT pg_current_xact_id(),
    at            lease.instant    NOT NULL DEFAULT clock_timestamp(),
    kind          text COLLATE "C" NOT NULL,
    run_id        lease.identifier NOT NULL,
    attempt_no    integer,
    node_id       lease.identifier,
    execution_no  integer,
    from_status   text COLLATE "C",
    to_status     text COLLATE "C",
    outcome       text COLLATE "C",
    owner         lease.identifier,
    error_code    lease.identifier,
    reference     lease.content_reference,
    CONSTRAINT run_events_kind_known CHECK (kind IN
        ('run_submitted', 'run_moved', 'cancel_requested', 'attempt_opened', 'attempt_closed',
         'node_started', 'node_finished', 'checkpoint_recorded', 'plan_changed'))
);
CREATE INDEX run_events_run_idx ON lease.run_events (run_id, event_id);
CREATE INDEX run_events_txid_idx ON lease.run_events (txid);
COMMENT ON COLUMN lease.run_events.from_status IS 'The run''s status; with node_id the node''s state.';
COMMENT ON COLUMN lease.run_events.owner IS 'Of the attempt: who had the run, or who lost it.';
COMMENT ON COLUMN lease.run_events.reference IS
    'checkpoint_recorded: the checkpoint_id; node events: the operation_id, where there is one.';

-- Guards: see 0002.
CREATE TRIGGER execution_closed_or_identity AFTER UPDATE ON lease.node_executions
    FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL
       OR OLD.run_id IS DISTINCT FROM NEW.run_id
       OR OLD.node_id IS DISTINCT FROM NEW.node_id
       OR OLD.attempt_no IS DISTINCT FROM NEW.attempt_no
       OR OLD.run_attempt_no IS DISTINCT FROM NEW.run_attempt_no
       OR OLD.operation_id IS DISTINCT FROM NEW.operation_id
       OR OLD.input_ref IS DISTINCT FROM NEW.input_ref
       OR OLD.started_at IS DISTINCT FROM NEW.started_at)
    EXECUTE FUNCTION lease.refuse_change(
        'a closed execution and the identity of an execution (run, node, number, attempt, operation, input, start) never change');
CREATE TRIGGER execution_born_open AFTER INSERT ON lease.node_executions
    FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION lease.refuse_change(
        'an execution is opened when it begins; history is not made up afterwards');

CREATE FUNCTION lease.guard_node() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest text;
BEGIN
    IF TG_OP = 'UPDATE' AND (OLD.run_id IS DISTINCT FROM NEW.run_id
                          OR OLD.node_id IS DISTINCT FROM NEW.node_id
                          OR NEW.state_version <> OLD.state_version + 1) THEN
        RAISE EXCEPTION 'lease.nodes: run "%", node "%": the identity is fixed and state_version grows by exactly one', OLD.run_id, OLD.node_id
            USING ERRCODE = 'check_violation';
    END IF;
    SELECT e.status INTO newest FROM lease.node_executions e
     WHERE e.run_id = NEW.run_id AND e.node_id = NEW.node_id
     ORDER BY e.attempt_no DESC LIMIT 1;
    IF newest IS DISTINCT FROM NEW.state THEN
        RAISE EXCEPTION 'lease.nodes: run "%", node "%" cannot be %: its newest execution is %', NEW.run_id, NEW.node_id, NEW.state, coalesce(newest, 'missing')
            USING ERRCODE = 'restrict_violation',
                  HINT = 'A node''s state follows from its executions; it changes through liblease.';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER node_guard AFTER INSERT OR UPDATE ON lease.nodes
    FOR EACH ROW EXECUTE FUNCTION lease.guard_node();

DO $$
DECLARE
    of text[];
BEGIN
    -- table, whether its rows are immutable from the start, what to say
    FOREACH of SLICE 1 IN ARRAY ARRAY[
        ['node_executions', 'delete', 'node executions are never deleted'],
        ['operations', 'all', 'operations never change'],
        ['contents', 'all', 'a registered content is immutable'],
        ['checkpoints', 'all', 'checkpoints never change'],
        ['run_events', 'all', 'events never change']]
    LOOP
        IF of[2] = 'all' THEN
            EXECUTE format('CREATE TRIGGER %1$s_update AFTER UPDATE ON lease.%1$s FOR EACH ROW EXECUTE FUNCTION lease.refuse_change(%2$L)', of[1], of[3]);
        END IF;
        EXECUTE format('CREATE TRIGGER %1$s_delete AFTER DELETE ON lease.%1$s FOR EACH ROW EXECUTE FUNCTION lease.refuse_change(%2$L)', of[1], of[3]);
        EXECUTE format('CREATE TRIGGER %1$s_truncate BEFORE TRUNCATE ON lease.%1$s FOR EACH STATEMENT EXECUTE FUNCTION lease.refuse_change(%2$L)', of[1], of[3]);
    END LOOP;
END
$$;

-- One notification a transaction that wrote events, with an empty payload: it only wakes up. The
-- setting lease.notify is on for the reconciler; for workers it is off unless their role or
-- database sets it (ALTER ROLE … SET lease.notify = on), because it serializes commits.
CREATE FUNCTION lease.notify_events() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('lease_events', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER event_notify AFTER INSERT ON lease.run_events
    FOR EACH STATEMENT WHEN (current_setting('lease.notify', true) = 'on')
    EXECUTE FUNCTION lease.notify_events();

DO $$
DECLARE
    trigger record;
BEGIN
    FOR trigger IN
        SELECT c.relname, t.tgname
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = 'lease'::regnamespace AND NOT t.tgisinternal
           AND t.tgname <> 'event_notify' AND t.tgenabled <> 'A'
    LOOP
        EXECUTE format('ALTER TABLE lease.%I ENABLE ALWAYS TRIGGER %I', trigger.relname, trigger.tgname);
    END LOOP;
END
$$;

-- Every node whose state its executions do not explain, or with an execution that is open though a
-- newer one is there or its attempt is closed. Must be empty.
CREATE VIEW lease.unexplained_nodes AS
SELECT n.run_id, n.node_id, n.state, e.attempt_no AS newest_attempt_no, e.status AS newest_status,
       CASE WHEN e.attempt_no IS NULL THEN 'the node has no execution'
            WHEN a.attempts IS DISTINCT FROM e.attempt_no THEN 'execution numbers have a gap'
            WHEN e.status IS DISTINCT FROM n.state THEN 'the newest execution has another status'
            WHEN o.attempt_no <> e.attempt_no THEN 'an execution is open that is not the newest'
            ELSE 'an execution is open under a closed attempt' END AS reason
  FROM lease.nodes n
 CROSS JOIN LATERAL (
       SELECT count(*) AS attempts FROM lease.node_executions c
        WHERE c.run_id = n.run_id AND c.node_id = n.node_id) a
  LEFT JOIN LATERAL (
       SELECT l.* FROM lease.node_executions l
        WHERE l.run_id = n.run_id AND l.node_id = n.node_id
        ORDER BY l.attempt_no DESC LIMIT 1) e ON true
  LEFT JOIN lease.node_executions o
         ON o.run_id = n.run_id AND o.node_id = n.node_id AND o.finished_at IS NULL
  LEFT JOIN lease.run_attempts r ON r.run_id = o.run_id AND r.attempt_no = o.run_attempt_no
 WHERE a.attempts IS DISTINCT FROM e.attempt_no
    OR e.status IS DISTINCT FROM n.state
    OR o.attempt_no <> e.attempt_no
    OR r.finished_at IS NOT NULL;
COMMENT ON VIEW lease.unexplained_nodes IS
    'Nodes whose state does not follow from their executions. Must be empty.';

-- For applications: where a run is, who has it, how often it was tried and lost.
CREATE VIEW lease.run_overview AS
SELECT r.run_id, r.tenant_id, r.status, r.state_version, r.plan_version, r.current_checkpoint_id,
       r.created_at, r.updated_at, r.not_before, r.deadline_at, r.cancel_requested_at, r.finished_at,
       r.terminal_error_code,
       o.owner, o.attempt_no AS open_attempt_no, o.lease_expires_at, o.heartbeat_at,
       coalesce(a.attempts, 0) AS attempts,
       coalesce(a.losses, 0) AS losses,
       n.current_nodes
  FROM lease.runs r
  LEFT JOIN lease.run_attempts o ON o.run_id = r.run_id AND o.finished_at IS NULL
  LEFT JOIN LATERAL (
       SELECT count(*) AS attempts, count(*) FILTER (WHERE t.outcome = 'lease_expired') AS losses
         FROM lease.run_attempts t WHERE t.run_id = r.run_id) a ON true
  LEFT JOIN LATERAL (
       SELECT array_agg(e.node_id::text ORDER BY e.started_at, e.node_id) AS current_nodes
         FROM lease.node_executions e WHERE e.run_id = r.run_id AND e.finished_at IS NULL) n ON true;
COMMENT ON VIEW lease.run_overview IS
    'One row a run: status, owner, end of the lease, attempts, losses, nodes that are running.';

-- Grants and ownership, as in 0003. Times, event_id and txid are the database's own: nobody gives
-- them, or a consumer of events would miss what carries a false one.
DO $$
DECLARE
    role text;
    statement text;
    statements text[][] := ARRAY[
        ['lease_worker',     'GRANT INSERT (run_id, node_id, state) ON lease.nodes TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (operation_id, run_id, node_id) ON lease.operations TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (run_id, node_id, attempt_no, run_attempt_no, operation_id, status, input_ref, trace_id) ON lease.node_executions TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (content_ref, hash, media_type, size_bytes, schema_version) ON lease.contents TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (checkpoint_id, run_id, run_attempt_no, state_version, plan_version, content_ref) ON lease.checkpoints TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (kind, run_id, attempt_no, node_id, execution_no, from_status, to_status, outcome, owner, error_code, reference) ON lease.run_events TO lease_worker'],
        ['lease_worker',     'GRANT UPDATE (state, state_version, updated_at) ON lease.nodes TO lease_worker'],
        ['lease_worker',     'GRANT UPDATE (status, finished_at, output_ref, normalized_error, error_message) ON lease.node_executions TO lease_worker'],
        ['lease_reconciler', 'GRANT UPDATE (state, state_version, updated_at) ON lease.nodes TO lease_reconciler'],
        ['lease_reconciler', 'GRANT UPDATE (status, finished_at) ON lease.node_executions TO lease_reconciler'],
        ['lease_reconciler', 'GRANT INSERT (kind, run_id, attempt_no, node_id, execution_no, from_status, to_status, outcome, owner, error_code, reference) ON lease.run_events TO lease_reconciler']];
BEGIN
    FOREACH role IN ARRAY ARRAY['lease_reader', 'lease_worker', 'lease_reconciler'] LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA lease TO %I', role);
        END IF;
    END LOOP;
    FOR i IN 1 .. array_length(statements, 1) LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = statements[i][1]) THEN
            EXECUTE statements[i][2];
        END IF;
    END LOOP;
    BEGIN
        FOR statement IN
            SELECT format('ALTER %s lease.%I%s OWNER TO %s', o.kind, o.name, o.suffix, n.owner)
              FROM (SELECT quote_ident(pg_get_userbyid(nspowner)) AS owner
                      FROM pg_namespace WHERE nspname = 'lease') n
             CROSS JOIN LATERAL (
                   SELECT 'TABLE' AS kind, relname AS name, '' AS suffix FROM pg_class
                    WHERE relnamespace = 'lease'::regnamespace AND relkind IN ('r', 'v')
                   UNION ALL
                   SELECT 'FUNCTION', proname, '()' FROM pg_proc WHERE pronamespace = 'lease'::regnamespace
                   UNION ALL
                   SELECT 'DOMAIN', typname, '' FROM pg_type
                    WHERE typnamespace = 'lease'::regnamespace AND typtype = 'd') o
        LOOP
            EXECUTE statement;
        END LOOP;
    EXCEPTION
        WHEN insufficient_privilege THEN
            RAISE NOTICE 'lease: what this migration added stays with %', current_user;
    END;
END
$$;
