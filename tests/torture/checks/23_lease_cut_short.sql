-- Every granted end of a lease was kept: the attempt was there, was not closed before the grant, and
-- its lease never ended earlier than granted.
SELECT a.run_id, format('%s of attempt %s granted %s at %s until %s; the attempt %s', a.verb, a.attempt_no,
           a.owner, torture.instant(a.now), torture.instant(a.ends),
           CASE WHEN t.run_id IS NULL THEN 'is not there'
                ELSE format('(%s, lease until %s) ended at %s', t.outcome, t.lease_expires_at, t.finished_at) END) AS what
  FROM torture.acts a
  LEFT JOIN lease.run_attempts t
         ON t.run_id = a.run_id AND t.attempt_no = a.attempt_no AND t.owner = a.owner
 WHERE a.result = 'ok' AND a.ends IS NOT NULL
   AND (t.run_id IS NULL
        OR t.lease_expires_at < torture.instant(a.ends)
        OR t.heartbeat_at < torture.instant(a.now)
        OR t.finished_at < torture.instant(a.now));
