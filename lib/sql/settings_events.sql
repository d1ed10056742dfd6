-- For open_window.sql and events_after.sql, beside settings_scan.sql: a bitmap would collect all of
-- a window, however long, before the first event of it is read.
SELECT pg_catalog.set_config('enable_bitmapscan', 'off', true);
