-- The events of a run tell its way without a break, from its submission to where it stands: each
-- goes on from the status that the one before led to; state_version, plan_version, checkpoint and
-- cancel request are what they say.
WITH step AS (
    SELECT run_id, event_id, kind, from_status, to_status,
           lag(to_status) OVER way AS before, row_number() OVER way AS place
      FROM lease.run_events WHERE node_id IS NULL
    WINDOW way AS (PARTITION BY run_id ORDER BY event_id)
), told AS (
    SELECT run_id,
           (array_agg(to_status ORDER BY event_id DESC))[1] AS status,
           1 + count(*) FILTER (WHERE (kind <> 'run_submitted' AND from_status <> to_status)
                                   OR kind IN ('checkpoint_recorded', 'plan_changed')) AS state_version,
           1 + count(*) FILTER (WHERE kind = 'plan_changed') AS plan_version,
           count(*) FILTER (WHERE kind = 'cancel_requested') AS cancels
      FROM lease.run_events WHERE node_id IS NULL
     GROUP BY run_id
)
SELECT run_id, format('event %s, %s, goes from %s to %s, the one before led to %s', event_id, kind,
           from_status, to_status, before) AS what
  FROM step
 WHERE (kind = 'run_submitted') <> (place = 1)
    OR (place > 1 AND from_status IS DISTINCT FROM before)
UNION ALL
SELECT r.run_id, format('it is %s, version %s, plan %s, cancel request at %s; its events lead to %s, version %s, plan %s, %s cancel requests',
           r.status, r.state_version, r.plan_version, r.cancel_requested_at, t.status, t.state_version,
           t.plan_version, t.cancels)
  FROM lease.runs r
  LEFT JOIN told t ON t.run_id = r.run_id
 WHERE t.status IS DISTINCT FROM r.status
    OR t.state_version IS DISTINCT FROM r.state_version
    OR t.plan_version IS DISTINCT FROM r.plan_version
    OR (r.cancel_requested_at IS NOT NULL) <> (t.cancels > 0)
UNION ALL
SELECT e.run_id, format('event %s, %s: there is no such run', e.event_id, e.kind)
  FROM lease.run_events e
 WHERE NOT EXISTS (SELECT FROM lease.runs r WHERE r.run_id = e.run_id);
