-- Settings of a transaction that reads many rows: as settings.sql, but joins are the planner's
-- choice. $1 statement_timeout, $2 lock_timeout: milliseconds.
-- No bitmap scans: pages and windows are read in the order of an index up to a limit, and a bitmap
-- would collect all that is left, however much, before the first row is read.
SELECT pg_catalog.set_config('statement_timeout', $1::text, true),
       pg_catalog.set_config('lock_timeout', $2::text, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true);
