-- Events of a window, by event_id: visible in a newer snapshot and not in an older one.
-- $1 the older snapshot, $2 the newer one, $3 the lowest event_id that open_window.sql gave (NULL:
-- none), $4 the event_id to go on after, $5 how many at most.
-- From the lowest one on the window lies densely in the primary key, which is read from where the
-- last batch ended, and no further than this batch needs. Below it are only events of transactions
-- that were in progress in the older snapshot (its xip), found by run_events_txid_idx, however long
-- ago they began. The expressions are such that no other index fits, whatever the statistics say.
-- PostgreSQL manual, 9.27 "Transaction ID and Snapshot Information Functions".
SELECT e.event_id, e.at, e.kind, e.run_id, e.attempt_no, e.node_id, e.execution_no, e.from_status,
       e.to_status, e.outcome, e.owner, e.error_code, e.reference
  FROM ((SELECT * FROM lease.run_events b
          WHERE b.event_id >= $3::int8
            AND b.event_id > $4::int8
            AND NOT pg_catalog.pg_visible_in_snapshot(b.txid, $1::pg_snapshot)
            AND pg_catalog.pg_visible_in_snapshot(b.txid, $2::pg_snapshot)
          ORDER BY b.event_id
          LIMIT $5::int8)
        UNION ALL
        (SELECT * FROM lease.run_events o
          WHERE o.txid = ANY (ARRAY(SELECT pg_catalog.pg_snapshot_xip($1::pg_snapshot)))
            AND ($3::int8 IS NULL OR o.event_id + 0 < $3::int8)
            AND o.event_id + 0 > $4::int8
            AND pg_catalog.pg_visible_in_snapshot(o.txid, $2::pg_snapshot)
          ORDER BY o.event_id + 0
          LIMIT $5::int8)) e
 ORDER BY e.event_id
 LIMIT $5::int8;
