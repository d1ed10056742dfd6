-- A call of which every try was refused, or failed with "nothing has changed", left nothing.
WITH denied AS (
    SELECT call, min(run_id) AS run_id, min(verb) AS verb, string_agg(DISTINCT result, ' ') AS results
      FROM torture.acts
     GROUP BY call
    HAVING bool_and(result <> 'ok') AND bool_and(unknown IS NOT true)
       AND count(*) FILTER (WHERE result = 'sent') = count(*) FILTER (WHERE result <> 'sent')
)
SELECT d.run_id, format('%s %s: %s; yet there is %s', d.verb, d.call, d.results, w.what) AS what
  FROM denied d
  JOIN (SELECT trace_id AS call, format('attempt %s of %s', attempt_no, run_id) AS what FROM lease.run_attempts
         UNION ALL
        SELECT error_code, format('the end of attempt %s of %s', attempt_no, run_id) FROM lease.run_attempts
         UNION ALL
        SELECT terminal_error_code, format('the end of run %s', run_id) FROM lease.runs
         UNION ALL
        SELECT trace_id, format('execution %s of %s of %s', attempt_no, node_id, run_id) FROM lease.node_executions
         UNION ALL
        SELECT error_message, format('the end of execution %s of %s of %s', attempt_no, node_id, run_id)
          FROM lease.node_executions
         UNION ALL
        SELECT checkpoint_id, format('the checkpoint of %s', run_id) FROM lease.checkpoints
         UNION ALL
        SELECT substr(run_id, 2), format('run %s', run_id) FROM lease.runs) w ON w.call = d.call;
