-- Lock the oldest pending run that is due, passing over those that others are claiming.
-- $1 tenant, NULL: any.
-- The status is a literal because runs_pending_idx is partial: with a parameter a generic plan
-- could not use it.
SELECT r.run_id
  FROM lease.runs r
 WHERE r.status = 'pending'
   AND (r.not_before IS NULL OR r.not_before <= clock_timestamp())
   AND (r.deadline_at IS NULL OR r.deadline_at > clock_timestamp())
   AND r.cancel_requested_at IS NULL
   AND ($1::text IS NULL OR r.tenant_id = $1::text)
   AND (SELECT a.attempt_no FROM lease.run_attempts a
         WHERE a.run_id = r.run_id AND a.finished_at IS NULL
           AND CASE WHEN a.lease_expires_at > clock_timestamp() THEN true
                    WHEN a.deadline_at <= clock_timestamp() THEN false
                    ELSE EXISTS (SELECT FROM lease.heartbeat h
                                  WHERE h.singleton AND a.lease_expires_at > h.protect_from
                                    AND (h.amnesty_until > clock_timestamp()
                                         OR h.beat_at + h.after < clock_timestamp())) END) IS NULL
 ORDER BY r.created_at, r.run_id
 LIMIT 1
   FOR NO KEY UPDATE OF r SKIP LOCKED;
