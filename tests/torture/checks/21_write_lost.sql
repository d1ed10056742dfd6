-- What a worker was told it had written, now or before, is in the history.
SELECT a.run_id, format('%s %s %s %s by %s was acknowledged, and is not there', a.verb, a.call, a.word,
           a.number, a.owner) AS what
  FROM torture.acts a
 WHERE a.result = 'ok' AND a.changed AND NOT CASE
       WHEN a.verb = 'submit' THEN EXISTS (
            SELECT FROM lease.runs r WHERE r.run_id = a.run_id)
       WHEN a.verb IN ('claim', 'claim_next') THEN EXISTS (
            SELECT FROM lease.run_attempts t
             WHERE t.run_id = a.run_id AND t.attempt_no = a.attempt_no AND t.owner = a.owner
               AND t.trace_id = a.call)
       WHEN a.verb IN ('finish', 'release') THEN EXISTS (
            SELECT FROM lease.run_attempts t
             WHERE t.run_id = a.run_id AND t.attempt_no = a.attempt_no AND t.owner = a.owner
               AND t.outcome = CASE a.verb WHEN 'release' THEN 'retry_released' ELSE a.word END
               AND t.error_code = a.call)
       WHEN a.verb = 'suspend' THEN EXISTS (
            SELECT FROM lease.run_attempts t
             WHERE t.run_id = a.run_id AND t.attempt_no = a.attempt_no AND t.owner = a.owner
               AND t.outcome = 'interrupted' AND t.error_code = 'suspended')
       WHEN a.verb = 'give_up' THEN EXISTS (
            SELECT FROM lease.runs r
             WHERE r.run_id = a.run_id AND r.status = 'failed' AND r.terminal_error_code = a.call)
       WHEN a.verb = 'node_start' THEN EXISTS (
            SELECT FROM lease.node_executions e
             WHERE e.run_id = a.run_id AND e.node_id = a.word AND e.attempt_no = a.number
               AND e.run_attempt_no = a.attempt_no AND e.trace_id = a.call)
       WHEN a.verb = 'node_finish' THEN EXISTS (
            SELECT FROM lease.node_executions e
             WHERE e.run_id = a.run_id AND e.node_id = a.word AND e.attempt_no = a.number
               AND e.run_attempt_no = a.attempt_no AND e.error_message = a.call
               AND e.status IN ('succeeded', 'failed'))
       WHEN a.verb = 'checkpoint' THEN EXISTS (
            SELECT FROM lease.checkpoints c
             WHERE c.checkpoint_id = a.call AND c.run_id = a.run_id AND c.run_attempt_no = a.attempt_no)
       WHEN a.verb = 'plan_change' THEN EXISTS (
            SELECT FROM lease.run_events e
             WHERE e.run_id = a.run_id AND e.kind = 'plan_changed' AND e.attempt_no = a.attempt_no)
       WHEN a.verb = 'cancel' THEN EXISTS (
            SELECT FROM lease.runs r
             WHERE r.run_id = a.run_id AND (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL))
       WHEN a.verb = 'resume' THEN EXISTS (
            SELECT FROM lease.run_events e
             WHERE e.run_id = a.run_id AND e.kind = 'run_moved' AND e.from_status = 'waiting'
               AND e.to_status = 'pending')
       ELSE false END
UNION ALL
SELECT a.run_id, format('%s %s %s by %s: "it had taken effect before"; attempt %s is not so', a.verb, a.call,
           a.word, a.owner, a.attempt_no)
  FROM torture.acts a
 WHERE a.result = 'ok' AND NOT a.changed AND a.verb IN ('finish', 'release', 'suspend')
   AND NOT EXISTS (
       SELECT FROM lease.run_attempts t
        WHERE t.run_id = a.run_id AND t.attempt_no = a.attempt_no AND t.owner = a.owner
          AND t.outcome = CASE a.verb WHEN 'release' THEN 'retry_released'
                                      WHEN 'suspend' THEN 'interrupted' ELSE a.word END);
