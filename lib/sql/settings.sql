-- Settings of one transaction (the third argument of set_config: local to it).
-- $1 statement_timeout, $2 lock_timeout: milliseconds. $3 lease.notify, on or off; NULL: as the
-- role's or the database's setting has it. $4 on: join by hashing alone; off: by nested loops alone.
-- Plans do not look at the parameters, so that those of prepared statements can be kept.
-- A client that falls silent between two batches (stopped, its network gone) must not keep its locks
-- until the server's TCP gives it up: a reconciler would pass over its run all that time.
-- JIT and parallel workers cost more than they bring for statements of this size. Sequential and
-- bitmap scans and merge joins are off so that rows are reached, and so locked, in the order of
-- the arrays that name them: by run_id, one lock order for all; and the next run in the order of its
-- index, not by sorting all that wait.
-- A nested loop keeps that order; but for a renewal of many leases it would compare every lease with
-- every other where the planner expects none, so these are joined by hashing: the one scan of
-- run_attempts_open_idx gives its rows in the order of run_id all the same.
SELECT pg_catalog.set_config('statement_timeout', $1::text, true),
       pg_catalog.set_config('lock_timeout', $2::text, true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', $1::text, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_bitmapscan', 'off', true),
       pg_catalog.set_config('enable_hashjoin', $4::text, true),
       pg_catalog.set_config('enable_nestloop', CASE $4::text WHEN 'on' THEN 'off' ELSE 'on' END,
                             true),
       pg_catalog.set_config('enable_mergejoin', 'off', true),
       pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true),
       CASE WHEN $3::text IS NOT NULL
            THEN pg_catalog.set_config('lease.notify', $3::text, true) END;
