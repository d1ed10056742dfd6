-- By the workers' own clock nobody believed to own a run while another did: a belief begins when the
-- grant comes back and ends at the last local_end, or when the owner sends the end of the attempt.
WITH belief AS (
    SELECT g.run_id, g.attempt_no, g.owner, min(g.at) AS begins, max(g.local_end) AS ends
      FROM torture.acts g
     WHERE g.result = 'ok' AND g.local_end IS NOT NULL
     GROUP BY g.run_id, g.attempt_no, g.owner
), ended AS (
    SELECT s.run_id, s.attempt_no, s.owner, min(s.sent) AS at
      FROM torture.acts s
     WHERE s.verb IN ('finish', 'release', 'suspend') AND s.result = 'sent'
       AND NOT EXISTS (SELECT FROM torture.acts r
                        WHERE r.call = s.call AND r.try = s.try AND r.result NOT IN ('sent', 'ok')
                          AND r.unknown IS NOT true)
     GROUP BY s.run_id, s.attempt_no, s.owner
), held AS (
    SELECT b.run_id, b.attempt_no, b.owner, b.begins, least(b.ends, e.at) AS ends
      FROM belief b LEFT JOIN ended e USING (run_id, attempt_no, owner)
), judged AS (
    SELECT *, max(ends) OVER (PARTITION BY run_id ORDER BY attempt_no
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM held
)
SELECT run_id, format('%s believed to own it as attempt %s from %s on, somebody else until %s (microseconds of CLOCK_BOOTTIME)',
           owner, attempt_no, begins, before) AS what
  FROM judged WHERE before > begins;
