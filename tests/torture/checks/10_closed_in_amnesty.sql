-- No attempt is closed as lost while an amnesty holds its lease. A close may have looked at a row that
-- was not the newest any more (its snapshot is older): it counts when every version of the row in
-- force in the seconds around it pardoned the lease.
WITH version AS (
    SELECT *, coalesce(lead(at) OVER (ORDER BY place), 'infinity') AS until FROM torture.beats
)
SELECT a.run_id, format('attempt %s of %s, lease until %s, was closed as lost at %s, in an amnesty until %s (protected from %s)',
           a.attempt_no, a.owner, a.lease_expires_at, a.finished_at, max(v.amnesty_until), max(v.protect_from)) AS what
  FROM lease.run_attempts a
  JOIN version v ON v.at <= a.finished_at + interval '1 s' AND v.until >= a.finished_at - interval '5 s'
 WHERE a.outcome = 'lease_expired' AND (a.deadline_at IS NULL OR a.deadline_at > a.finished_at)
 GROUP BY a.run_id, a.attempt_no, a.owner, a.lease_expires_at, a.finished_at
HAVING bool_and(coalesce(a.lease_expires_at > v.protect_from
                         AND (v.amnesty_until > a.finished_at
                              OR v.beat_at + v.after < a.finished_at), false))
   AND min(v.at) <= a.finished_at - interval '5 s';
