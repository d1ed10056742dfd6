-- Open a window of events: what is visible in this transaction's snapshot and was not in an older
-- one. $1 the older snapshot.
-- Gives the newer snapshot; the lowest event_id among the window's events whose transactions lie
-- past the older one (txid >= its xmax; NULL: there are none); whether this server is a standby,
-- whose snapshots do not name the transactions in progress; whether the older snapshot is of a
-- later time than this one.
-- event_id + 0, so that the minimum is not looked for by walking the primary key from its start.
SELECT pg_catalog.pg_current_snapshot()::text,
       CASE WHEN pg_catalog.pg_snapshot_xmax($1::pg_snapshot) = '1'::xid8 THEN 1 -- the first window
            ELSE (SELECT min(e.event_id + 0) FROM lease.run_events e
                   WHERE e.txid >= pg_catalog.pg_snapshot_xmax($1::pg_snapshot)) END,
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.pg_snapshot_xmax($1::pg_snapshot)
           > pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot());
