-- All workers are gone and all leases over: nothing is left open.
SELECT a.run_id, format('attempt %s of %s is open, its lease ended at %s, now it is %s', a.attempt_no, a.owner,
           a.lease_expires_at, clock_timestamp()) AS what
  FROM lease.run_attempts a WHERE a.finished_at IS NULL
UNION ALL
SELECT e.run_id, format('execution %s of %s is open', e.attempt_no, e.node_id)
  FROM lease.node_executions e WHERE e.finished_at IS NULL;
