-- All events of a run. $1 run_id.
SELECT e.event_id, e.at, e.kind, e.run_id, e.attempt_no, e.node_id, e.execution_no, e.from_status,
       e.to_status, e.outcome, e.owner, e.error_code, e.reference
  FROM lease.run_events e
 WHERE e.run_id = $1::text
 ORDER BY e.event_id;
