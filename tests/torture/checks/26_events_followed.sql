-- A consumer that followed the events through all faults was given each once, those of one run in order.
SELECT e.run_id, format('event %s, %s, came %s times', e.event_id, e.kind, count(f.event_id)) AS what
  FROM lease.run_events e
  LEFT JOIN torture.followed f ON f.event_id = e.event_id
 GROUP BY e.run_id, e.event_id, e.kind
HAVING count(f.event_id) <> 1
UNION ALL
SELECT run_id, format('event %s came after event %s', event_id, before)
  FROM (SELECT run_id, event_id, lag(event_id) OVER (PARTITION BY run_id ORDER BY place) AS before
          FROM torture.followed) f
 WHERE before > event_id
UNION ALL
SELECT f.run_id, format('event %s came, and is not there', f.event_id)
  FROM torture.followed f
 WHERE NOT EXISTS (SELECT FROM lease.run_events e WHERE e.event_id = f.event_id);
