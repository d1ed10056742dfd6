-- 0006 archive: the one way by which facts leave the database.
--
-- leasectl archive writes runs that ended long ago into files, with all their facts, and hands this
-- migration's lease.remove_runs a digest of what the files hold of each. The function removes a run
-- only if its facts here give the same digest, so nothing is removed that was not exported, to the
-- byte. It runs as lease_remover, the only role that the guards let pass. Contents stay: runs share
-- them, and only with three more indexes, on the path of every node, could it be told that nobody
-- refers to one any more.
--
--   lease_archive   looks, and may call lease.remove_runs; cannot delete anything by itself
--   lease_remover   owns lease.remove_runs and may DELETE; granted to nobody, ever

-- Finds what ended long ago, oldest first. Ending a run writes one entry more; nothing else does.
-- First, so that the locks that renewals would wait behind, further down, are held for a moment only.
CREATE INDEX runs_finished_idx ON lease.runs (finished_at, run_id) WHERE finished_at IS NOT NULL;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['lease_archive', 'lease_remover'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role);
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'lease: role % is missing and % may not create it: nothing can be archived', role, current_user;
        END;
    END LOOP;
END
$$;

-- All that is on record of runs, a line a row, as it stands in the files of leasectl archive. The
-- order is fixed, and so is every byte, whatever the session's settings are. A content that the run
-- refers to stands with it.
CREATE FUNCTION lease.run_facts(run_ids text[]) RETURNS TABLE (run_id text, line text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET jit = off
SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT w.run_id, '{"table":"' || f.name || '","row":' || f.fact || '}'
      FROM (SELECT DISTINCT u.run_id COLLATE "C" FROM unnest(run_ids) u (run_id)) w (run_id)
     CROSS JOIN LATERAL (
           SELECT 1, 'runs', '', 0::bigint, row_to_json(r)::text
             FROM lease.runs r WHERE r.run_id = w.run_id
           UNION ALL
           SELECT 2, 'run_attempts', '', a.attempt_no, row_to_json(a)::text
             FROM lease.run_attempts a WHERE a.run_id = w.run_id
           UNION ALL
           SELECT 3, 'nodes', n.node_id, 0, row_to_json(n)::text
             FROM lease.nodes n WHERE n.run_id = w.run_id
           UNION ALL
           SELECT 4, 'operations', o.operation_id, 0, row_to_json(o)::text
             FROM lease.operations o WHERE o.run_id = w.run_id
           UNION ALL
           SELECT 5, 'contents', c.content_ref, 0, row_to_json(c)::text
             FROM (SELECT e.input_ref FROM lease.node_executions e WHERE e.run_id = w.run_id
                   UNION
                   SELECT e.output_ref FROM lease.node_executions e WHERE e.run_id = w.run_id
                   UNION
                   SELECT k.content_ref FROM lease.checkpoints k WHERE k.run_id = w.run_id) x (content_ref)
             JOIN lease.contents c ON c.content_ref = x.content_ref
           UNION ALL
           SELECT 6, 'node_executions', e.node_id, e.attempt_no, row_to_json(e)::text
             FROM lease.node_executions e WHERE e.run_id = w.run_id
           UNION ALL
           SELECT 7, 'checkpoints', k.checkpoint_id, 0, row_to_json(k)::text
             FROM lease.checkpoints k WHERE k.run_id = w.run_id
           UNION ALL
           SELECT 8, 'run_events', '', v.event_id, row_to_json(v)::text
             FROM lease.run_events v WHERE v.run_id = w.run_id) f (place, name, key, number, fact)
     ORDER BY w.run_id, f.place, f.key COLLATE "C", f.number
$$;
COMMENT ON FUNCTION lease.run_facts(text[]) IS
    'All rows that are on record of these runs, as JSON lines in a fixed order: what leasectl archive exports.';

-- Removes runs and all their facts, those that are in the archive: digests[i] is the SHA-256, in
-- hexadecimal, of the SHA-256s of the lines that lease.run_facts gave for run_ids[i] and that a file
-- holds. Says of each run what became of it:
--
--   removed
--   gone            there is no such run (any more)
--   not_terminal    it has not ended
--   too_young       it ended, but not before finished_before
--   locked          somebody holds its row at this moment
--   open_attempt, open_execution
--                   it ended, and yet something of it is open
--   changed         its facts are not those that were exported
--
-- Looking and deleting are one statement, in one snapshot: what is deleted is what the digest was
-- made of. Foreign keys refuse the whole of it if something was added meanwhile.
CREATE FUNCTION lease.remove_runs(run_ids text[], digests text[], finished_before timestamptz)
RETURNS TABLE (run_id text, verdict text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
SET jit = off
SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    held text[];
BEGIN
    IF run_ids IS NULL OR cardinality(run_ids) IS DISTINCT FROM cardinality(digests)
       OR cardinality(run_ids) > 10000 OR coalesce(array_ndims(run_ids), 1) <> 1 THEN
        RAISE EXCEPTION 'lease.remove_runs: run_ids and digests must be two arrays of one length, of 10000 at most'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (finished_before <= clock_timestamp() - interval '1 day') IS NOT TRUE THEN
        RAISE EXCEPTION 'lease.remove_runs: finished_before must be at least one day ago'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Commands that are repeated and consumers of events need the facts of runs that ended just now.';
    END IF;
    held := ARRAY(SELECT r.run_id FROM lease.runs r
                   WHERE r.run_id = ANY (run_ids) AND r.finished_at < finished_before
                   ORDER BY r.run_id
                     FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    WITH facts AS (
        SELECT f.run_id,
               encode(sha256(string_agg(sha256(convert_to(f.line, 'UTF8')), '' ORDER BY f.n)), 'hex') AS digest
          FROM lease.run_facts(held) WITH ORDINALITY f (run_id, line, n)
         GROUP BY f.run_id
    ), judged AS MATERIALIZED (
        SELECT q.run_id,
               CASE
                   WHEN r.run_id IS NULL THEN 'gone'
                   WHEN r.finished_at IS NULL THEN 'not_terminal'
                   WHEN (r.finished_at < finished_before) IS NOT TRUE THEN 'too_young'
                   WHEN (q.run_id = ANY (held)) IS NOT TRUE THEN 'locked'
                   WHEN a.is_open THEN 'open_attempt'
                   WHEN e.is_open THEN 'open_execution'
                   WHEN f.digest IS DISTINCT FROM q.digest THEN 'changed'
                   ELSE 'removed'
               END AS verdict
          FROM unnest(run_ids, digests) q (run_id, digest)
          LEFT JOIN lease.runs r ON r.run_id = q.run_id
          LEFT JOIN facts f ON f.run_id = q.run_id
          LEFT JOIN LATERAL (SELECT true FROM lease.run_attempts o
                              WHERE o.run_id = q.run_id AND o.finished_at IS NULL LIMIT 1) a (is_open) ON true
          LEFT JOIN LATERAL (SELECT true FROM lease.node_executions o
                              WHERE o.run_id = q.run_id AND o.finished_at IS NULL LIMIT 1) e (is_open) ON true
    ), removed AS MATERIALIZED (
        SELECT array_agg(j.run_id) AS run_ids FROM judged j WHERE j.verdict = 'removed'
    ), events AS (
        DELETE FROM lease.run_events v WHERE v.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), executions AS (
        DELETE FROM lease.node_executions e WHERE e.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), operations AS (
        DELETE FROM lease.operations o WHERE o.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), checkpoints AS (
        DELETE FROM lease.checkpoints k WHERE k.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), nodes AS (
        DELETE FROM lease.nodes n WHERE n.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), attempts AS (
        DELETE FROM lease.run_attempts a WHERE a.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    ), runs AS (
        DELETE FROM lease.runs r WHERE r.run_id = ANY ((SELECT m.run_ids FROM removed m)::text[])
    )
    SELECT j.run_id, j.verdict FROM judged j;
END
$$;
COMMENT ON FUNCTION lease.remove_runs(text[], text[], timestamptz) IS
    'Removes runs that ended before a time and whose facts were exported, by leasectl archive alone.';

-- Functions are everybody's until they are not. Before the ownership goes, while it is ours to say.
REVOKE ALL ON FUNCTION lease.run_facts(text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION lease.remove_runs(text[], text[], timestamptz) FROM PUBLIC;

DO $$
DECLARE
    statements text[][] := ARRAY[
        ['lease_archive', 'GRANT USAGE ON SCHEMA lease TO lease_archive'],
        ['lease_archive', 'GRANT SELECT ON ALL TABLES IN SCHEMA lease TO lease_archive'],
        ['lease_archive', 'GRANT EXECUTE ON FUNCTION lease.run_facts(text[]) TO lease_archive'],
        ['lease_archive', 'GRANT EXECUTE ON FUNCTION lease.remove_runs(text[], text[], timestamptz) TO lease_archive'],
        ['lease_remover', 'GRANT USAGE ON SCHEMA lease TO lease_remover'],
        ['lease_remover', 'GRANT SELECT, DELETE ON lease.runs, lease.run_attempts, lease.nodes, lease.operations, lease.node_executions, lease.checkpoints, lease.run_events TO lease_remover'],
        ['lease_remover', 'GRANT SELECT ON lease.contents TO lease_remover'],
        -- to lock rows takes the right to update a column of them
        ['lease_remover', 'GRANT UPDATE (updated_at) ON lease.runs TO lease_remover'],
        ['lease_remover', 'GRANT EXECUTE ON FUNCTION lease.run_facts(text[]) TO lease_remover']];
BEGIN
    FOR i IN 1 .. pg_catalog.array_length(statements, 1) LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = statements[i][1]) THEN
            EXECUTE statements[i][2];
        END IF;
    END LOOP;
    BEGIN
        -- to whom the schema went, as in 0004
        EXECUTE (SELECT pg_catalog.format('ALTER FUNCTION lease.run_facts(text[]) OWNER TO %I',
                                          pg_catalog.pg_get_userbyid(n.nspowner))
                   FROM pg_catalog.pg_namespace n WHERE n.nspname = 'lease');
    EXCEPTION
        WHEN insufficient_privilege THEN
            RAISE NOTICE 'lease: function run_facts stays with %: it may not be handed over', current_user;
    END;
END
$$;

-- Who is no superuser may hand a function only to a role that it can become and that may create in
-- the schema: for the length of this block, and if it may make itself a member (CREATEROLE).
DO $$
DECLARE
    ordinary boolean := NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'lease_remover') THEN
        RETURN;
    END IF;
    IF ordinary THEN
        EXECUTE pg_catalog.format('GRANT lease_remover TO %I', current_user);
        GRANT CREATE ON SCHEMA lease TO lease_remover;
    END IF;
    ALTER FUNCTION lease.remove_runs(text[], text[], timestamptz) OWNER TO lease_remover;
    IF ordinary THEN
        REVOKE CREATE ON SCHEMA lease FROM lease_remover;
        EXECUTE pg_catalog.format('REVOKE lease_remover FROM %I', current_user);
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'lease: function remove_runs stays with %, who may not hand it to lease_remover: nothing can be archived', current_user;
END
$$;

-- The guards of 0002 and 0004 again, with the exception, and the same for runs and nodes, which only
-- foreign keys held. WHEN is looked at when the row is deleted, so it sees the function's owner.
-- Updates, TRUNCATE and contents have no exception.
DO $$
DECLARE
    of text[];
BEGIN
    FOREACH of SLICE 1 IN ARRAY ARRAY[
        ['runs', 'runs_delete', 'runs are never deleted'],
        ['run_attempts', 'attempt_delete', 'attempts are never deleted'],
        ['nodes', 'nodes_delete', 'nodes are never deleted'],
        ['node_executions', 'node_executions_delete', 'node executions are never deleted'],
        ['operations', 'operations_delete', 'operations never change'],
        ['checkpoints', 'checkpoints_delete', 'checkpoints never change'],
        ['run_events', 'run_events_delete', 'events never change']]
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE OR REPLACE TRIGGER %2$I AFTER DELETE ON lease.%1$I FOR EACH ROW'
            ' WHEN (CURRENT_USER IS DISTINCT FROM ''lease_remover''::name)'
            ' EXECUTE FUNCTION lease.refuse_change(%3$L)', of[1], of[2], of[3]);
        EXECUTE pg_catalog.format('ALTER TABLE lease.%I ENABLE ALWAYS TRIGGER %I', of[1], of[2]);
    END LOOP;
END
$$;
