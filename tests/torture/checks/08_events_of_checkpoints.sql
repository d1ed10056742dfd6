-- Every checkpoint has its one event, and the run names the newest.
SELECT run_id, format('checkpoint %s of attempt %s: %s facts, %s events', checkpoint_id, attempt_no,
           sum(fact), sum(event)) AS what
  FROM (SELECT run_id, checkpoint_id, run_attempt_no AS attempt_no, 1 AS fact, 0 AS event FROM lease.checkpoints
         UNION ALL
        SELECT run_id, reference, attempt_no, 0, 1 FROM lease.run_events WHERE kind = 'checkpoint_recorded') x
 GROUP BY run_id, checkpoint_id, attempt_no
HAVING sum(fact) <> 1 OR sum(event) <> 1
UNION ALL
SELECT r.run_id, format('its checkpoint is %s, the newest is %s', r.current_checkpoint_id, c.checkpoint_id)
  FROM lease.runs r
  LEFT JOIN LATERAL (SELECT * FROM lease.checkpoints c WHERE c.run_id = r.run_id
                      ORDER BY c.state_version DESC LIMIT 1) c ON true
 WHERE c.checkpoint_id IS DISTINCT FROM r.current_checkpoint_id;
