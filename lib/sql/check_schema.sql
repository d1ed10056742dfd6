-- The newest applied migration.
SELECT max(m.version)::int4 FROM lease.schema_migrations m;
