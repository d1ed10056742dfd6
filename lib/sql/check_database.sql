-- Whether this server can be written to and which schema it has. An expression that names a missing
-- relation would fail as a whole, so the version is read by a second statement.
SELECT pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('transaction_read_only') = 'on',
       pg_catalog.to_regclass('lease.schema_migrations') IS NOT NULL;
