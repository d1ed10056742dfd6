-- All checkpoints of a run. $1 run_id.
SELECT c.checkpoint_id, c.run_attempt_no, c.state_version, c.plan_version, c.created_at, c.content_ref
  FROM lease.checkpoints c
 WHERE c.run_id = $1::text
 ORDER BY c.created_at, c.checkpoint_id;
