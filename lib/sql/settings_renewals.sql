-- For a renewal of many leases, beside settings.sql: its one scan of run_attempts_open_idx returns
-- rows in the order of run_id whatever they are joined by, and a nested loop compares every lease
-- with every other where the planner expects none.
SELECT pg_catalog.set_config('enable_hashjoin', 'on', true);
