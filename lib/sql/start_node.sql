-- Open an execution of a node, with the node and the operation where they are new, under the lock
-- on its run. $1 run_id, $2 node_id, $3 number of the execution, $4 number of the run attempt,
-- $5 operation_id, $6 input_ref, $7 trace_id (NULL: none), $8 its status, $9 the node's before
-- (NULL: it is new), $10 owner.
-- An operation that another run registers at the same moment violates the foreign key.
-- Gives when it started and the node's state_version.
WITH node AS (
    INSERT INTO lease.nodes AS n (run_id, node_id, state)
    VALUES ($1::text, $2::text, $8::text)
    ON CONFLICT (run_id, node_id) DO UPDATE
       SET state = excluded.state,
           state_version = n.state_version + 1,
           updated_at = clock_timestamp()
    RETURNING n.state_version
), operation AS (
    INSERT INTO lease.operations (operation_id, run_id, node_id)
    SELECT $5::text, $1::text, $2::text WHERE $5::text IS NOT NULL
    ON CONFLICT (operation_id) DO NOTHING
), execution AS (
    INSERT INTO lease.node_executions
           (run_id, node_id, attempt_no, run_attempt_no, operation_id, status, input_ref, trace_id)
    VALUES ($1::text, $2::text, $3::int4, $4::int4, $5::text, $8::text, $6::text, $7::text)
    RETURNING started_at
), events AS (
    INSERT INTO lease.run_events
           (kind, run_id, attempt_no, node_id, execution_no, from_status, to_status, owner, reference)
    VALUES ('node_started', $1::text, $4::int4, $2::text, $3::int4, $9::text, $8::text, $10::text,
            $5::text)
)
SELECT e.started_at, n.state_version FROM execution e CROSS JOIN node n;
