-- What happened after event_id $1, by kind and outcome; the first row: when, and the newest event_id
-- that is visible. A transaction in progress may still add events below it.
SELECT NULL::text, NULL::text, coalesce(max(e.event_id), 0), clock_timestamp() FROM lease.run_events e
UNION ALL
SELECT e.kind, e.outcome, count(*), NULL
  FROM lease.run_events e
 WHERE e.event_id > $1::int8
 GROUP BY e.kind, e.outcome
 ORDER BY 1 NULLS FIRST;
