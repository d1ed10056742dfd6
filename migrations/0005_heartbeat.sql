-- 0005 heartbeat: whether the database could be written to of late.
--
-- While the database is away, frozen or failing over nobody can renew. The reconciler beats one row;
-- a gap in its beats proves an outage, and for a grace the leases that ended meanwhile still count as
-- valid: an amnesty. A lease is valid at the moment `now` when
--
--     lease_expires_at > now
--     or lease_expires_at > protect_from
--        and (deadline_at is null or deadline_at > now)
--        and (amnesty_until > now or beat_at + after < now)
--
-- The settings stand in the row, so that workers and reconcilers read the same. No row: no reconciler
-- with amnesty ever ran here, or it is switched off; then the first half alone counts.

CREATE TABLE lease.heartbeat (
    singleton      boolean       PRIMARY KEY DEFAULT true,
    beat_at        lease.instant NOT NULL,
    protect_from   lease.instant NOT NULL,
    amnesty_until  lease.instant NOT NULL,
    after          interval      NOT NULL,
    grace          interval      NOT NULL,
    CONSTRAINT heartbeat_single CHECK (singleton),
    CONSTRAINT heartbeat_after_positive CHECK (after > interval '0'),
    CONSTRAINT heartbeat_grace_positive CHECK (grace > interval '0')
) WITH (fillfactor = 50);

COMMENT ON TABLE lease.heartbeat IS 'One row, beaten by the reconcilers: the amnesty. Written by liblease alone.';
COMMENT ON COLUMN lease.heartbeat.beat_at IS 'The last beat, by its one reading of the database clock.';
COMMENT ON COLUMN lease.heartbeat.protect_from IS
    'The last beat at which all was well: leases that ended before it are not protected.';
COMMENT ON COLUMN lease.heartbeat.amnesty_until IS 'Until then leases that ended after protect_from still hold.';
COMMENT ON COLUMN lease.heartbeat.after IS 'A time without a beat that is longer than this is an outage.';
COMMENT ON COLUMN lease.heartbeat.grace IS 'How long an amnesty lasts after the first beat that follows an outage.';

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['lease_reader', 'lease_worker', 'lease_reconciler'] LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            EXECUTE pg_catalog.format('GRANT SELECT ON lease.heartbeat TO %I', role);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'lease_reconciler') THEN
        GRANT INSERT, UPDATE, DELETE ON lease.heartbeat TO lease_reconciler;
    END IF;
    -- to whom the schema went, as in 0004
    EXECUTE (SELECT pg_catalog.format('ALTER TABLE lease.heartbeat OWNER TO %I',
                                      pg_catalog.pg_get_userbyid(n.nspowner))
               FROM pg_catalog.pg_namespace n WHERE n.nspname = 'lease');
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'lease: the heartbeat stays with %: it may not be handed over', current_user;
END
$$;
