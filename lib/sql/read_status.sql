-- Where the database stands: counts over the partial indexes, whose literals these are; a lease that an
-- amnesty keeps is not over; the heartbeat's last beat and the end of the amnesty in force.
SELECT c.now,
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'pending'),
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'running'),
       (SELECT count(*) FROM lease.runs r WHERE r.status = 'waiting'),
       o.attempts, o.expired, o.pardoned, o.oldest, o.next,
       h.beat_at, CASE WHEN h.amnesty_until > c.now THEN h.amnesty_until END
  FROM (SELECT clock_timestamp() AS now) c
  LEFT JOIN lease.heartbeat h ON h.singleton
 CROSS JOIN LATERAL (
       SELECT count(*) AS attempts,
              count(*) FILTER (WHERE a.ended AND NOT a.pardoned) AS expired,
              count(*) FILTER (WHERE a.pardoned) AS pardoned,
              min(a.lease_expires_at) FILTER (WHERE a.ended AND NOT a.pardoned) AS oldest,
              min(a.lease_expires_at) FILTER (WHERE NOT a.ended) AS next
         FROM (SELECT b.lease_expires_at,
                      b.lease_expires_at <= c.now AS ended,
                      coalesce(b.lease_expires_at <= c.now
                               AND b.lease_expires_at > h.protect_from
                               AND (b.deadline_at IS NULL OR b.deadline_at > c.now)
                               AND (h.amnesty_until > c.now OR h.beat_at + h.after < c.now),
                               false) AS pardoned
                 FROM lease.run_attempts b
                WHERE b.finished_at IS NULL) a) o;
