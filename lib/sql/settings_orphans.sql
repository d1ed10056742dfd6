-- For scan_orphans.sql, beside settings_scan.sql: with statistics that are older than the leases, a
-- nested loop would read the index on open attempts once for each running run.
SELECT pg_catalog.set_config('enable_nestloop', 'off', true);
