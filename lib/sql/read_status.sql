-- Where the database stands: counts over the partial indexes, whose literals these are.
SELECT c.now,
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'pending'),
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'running'),
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'waiting'),
       o.attempts, o.expired, o.oldest, o.next
  FROM (SELECT clock_timestamp() AS now) c
 CROSS JOIN LATERAL (
       SELECT count(*) AS attempts,
              count(*) FILTER (WHERE a.lease_expires_at <= c.now) AS expired,
              min(a.lease_expires_at) FILTER (WHERE a.lease_expires_at <= c.now) AS oldest,
              min(a.lease_expires_at) FILTER (WHERE a.lease_expires_at > c.now) AS next
         FROM lease.run_attempts a
        WHERE a.finished_at IS NULL) o;
