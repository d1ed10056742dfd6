-- 0003 roles: who may do what. None of them can log in; grant them to those that do:
--     GRANT lease_worker TO my_app;
--
--   lease_owner       owns the schema
--   lease_reader      looks
--   lease_worker      what liblease needs: submit, claim, renew, end
--   lease_reconciler  looks, closes attempts, moves runs; can neither open nor delete an attempt
--
-- Roles belong to the whole cluster, so they may be there already, made by another database's
-- migration. A migrating user who may not create roles or hand over ownership is told so by a
-- notice, and the schema stays theirs.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['lease_owner', 'lease_reader', 'lease_worker', 'lease_reconciler'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role);
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'lease: role % is missing and % may not create it', role, current_user;
        END;
    END LOOP;
END
$$;

REVOKE ALL ON SCHEMA lease FROM PUBLIC;

DO $$
DECLARE
    -- grants, each with the role it is for
    statements text[][] := ARRAY[
        ['lease_reader',     'GRANT USAGE ON SCHEMA lease TO lease_reader'],
        ['lease_reader',     'GRANT SELECT ON ALL TABLES IN SCHEMA lease TO lease_reader'],
        ['lease_worker',     'GRANT USAGE ON SCHEMA lease TO lease_worker'],
        ['lease_worker',     'GRANT SELECT ON ALL TABLES IN SCHEMA lease TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (run_id, tenant_id, status, not_before, deadline_at) ON lease.runs TO lease_worker'],
        ['lease_worker',     'GRANT UPDATE (status, state_version, plan_version, current_checkpoint_id, not_before, cancel_requested_at, updated_at, finished_at, terminal_error_code, terminal_error_message) ON lease.runs TO lease_worker'],
        ['lease_worker',     'GRANT INSERT (run_id, attempt_no, owner, started_at, heartbeat_at, lease_expires_at, deadline_at, cancel_requested_at, trace_id) ON lease.run_attempts TO lease_worker'],
        ['lease_worker',     'GRANT UPDATE (heartbeat_at, lease_expires_at, cancel_requested_at, finished_at, outcome, error_code, error_message) ON lease.run_attempts TO lease_worker'],
        ['lease_reconciler', 'GRANT USAGE ON SCHEMA lease TO lease_reconciler'],
        ['lease_reconciler', 'GRANT SELECT ON ALL TABLES IN SCHEMA lease TO lease_reconciler'],
        ['lease_reconciler', 'GRANT UPDATE (status, state_version, not_before, updated_at, finished_at, terminal_error_code, terminal_error_message) ON lease.runs TO lease_reconciler'],
        ['lease_reconciler', 'GRANT UPDATE (finished_at, outcome, error_code, error_message) ON lease.run_attempts TO lease_reconciler']];
    i integer;
BEGIN
    FOR i IN 1 .. pg_catalog.array_length(statements, 1) LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = statements[i][1]) THEN
            EXECUTE statements[i][2];
        END IF;
    END LOOP;
END
$$;

DO $$
DECLARE
    statement text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'lease_owner') THEN
        RETURN;
    END IF;
    FOR statement IN
        SELECT pg_catalog.format('ALTER TABLE lease.%I OWNER TO lease_owner', c.relname)
          FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'lease'::regnamespace AND c.relkind IN ('r', 'v')
        UNION ALL
        SELECT pg_catalog.format('ALTER FUNCTION lease.%I() OWNER TO lease_owner', p.proname)
          FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'lease'::regnamespace
        UNION ALL
        SELECT pg_catalog.format('ALTER DOMAIN lease.%I OWNER TO lease_owner', t.typname)
          FROM pg_catalog.pg_type t
         WHERE t.typnamespace = 'lease'::regnamespace AND t.typtype = 'd'
    LOOP
        EXECUTE statement;
    END LOOP;
    ALTER SCHEMA lease OWNER TO lease_owner;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'lease: the schema stays with %: it may not be handed to lease_owner', current_user;
END
$$;
