-- Close an execution of a node and move the node, under the lock on its run. $1 run_id, $2 node_id,
-- $3 number of the execution, $4 number of the run attempt, $5 its status, $6 normalized_error,
-- $7 error_message, $8 output_ref (NULL: none), $9 its status before, $10 owner.
-- Gives when it finished and the node's state_version; nothing when it was not open.
WITH execution AS (
    UPDATE lease.node_executions e
       SET finished_at = clock_timestamp(), status = $5::text, normalized_error = $6::text,
           error_message = $7::text, output_ref = $8::text
     WHERE e.run_id = $1::text
       AND e.node_id = $2::text
       AND e.attempt_no = $3::int4
       AND e.run_attempt_no = $4::int4
       AND e.finished_at IS NULL
    RETURNING e.run_id, e.node_id, e.attempt_no, e.run_attempt_no, e.operation_id, e.status,
              e.finished_at, e.normalized_error
), node AS (
    UPDATE lease.nodes n
       SET state = e.status, state_version = n.state_version + 1, updated_at = clock_timestamp()
      FROM execution e
     WHERE n.run_id = e.run_id AND n.node_id = e.node_id
    RETURNING n.state_version
), events AS (
    INSERT INTO lease.run_events
           (kind, run_id, attempt_no, node_id, execution_no, from_status, to_status, owner,
            error_code, reference)
    SELECT 'node_finished', e.run_id, e.run_attempt_no, e.node_id, e.attempt_no, $9::text, e.status,
           $10::text, e.normalized_error, e.operation_id
      FROM execution e
)
SELECT e.finished_at, n.state_version FROM execution e CROSS JOIN node n;
