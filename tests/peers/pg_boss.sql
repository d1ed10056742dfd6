-- Rows for pg-boss, into its own tables: rescue.js made them and the queue `work`.
--
-- `peers.rows` active jobs that started an hour ago and may take 15 minutes, as many that may take a
-- day, and as many completed ones.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

INSERT INTO pgboss.job (name, data, state, started_on, expire_in, completed_on, policy)
SELECT 'work', jsonb_build_object('n', i),
       (CASE kind WHEN 'ended' THEN 'completed' ELSE 'active' END)::pgboss.job_state,
       now() - interval '1 hour',
       CASE kind WHEN 'lost' THEN interval '15 minutes' ELSE interval '1 day' END,
       CASE kind WHEN 'ended' THEN now() END, 'standard'
  FROM (VALUES (1, 'ended'), (2, 'held'), (3, 'lost')) k (place, kind),
       generate_series(1, current_setting('peers.rows')::int) i
 ORDER BY place, i;
