-- Rows for graphile-worker, into its own tables: rescue.js made them.
--
-- `peers.rows` jobs whose worker was lost more than four hours ago, as many that are being worked on.
-- A job that succeeds is deleted by it, so there are no ended ones.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('work') ON CONFLICT DO NOTHING;

INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at, attempts, locked_at, locked_by)
SELECT t.id, json_build_object('n', i), now() - interval '6 hours', 1,
       CASE WHEN lost THEN now() - interval '5 hours' ELSE now() END, 'worker-' || i % 64
  FROM graphile_worker._private_tasks t, (VALUES (false), (true)) l (lost),
       generate_series(1, current_setting('peers.rows')::int) i
 WHERE t.identifier = 'work' ORDER BY lost, i;
