-- The faults bring lost connections, timeouts and servers that go down, and no other error: nothing
-- that only a person could mend, no answer that liblease does not understand.
SELECT run_id, format('%s %s of %s failed: %s %s %s', verb, call, worker, result, sqlstate, message) AS what
  FROM torture.acts
 WHERE unknown IS NOT NULL
   AND (advice = 'fix' OR sqlstate LIKE '23%' OR sqlstate LIKE '42%'
        OR result NOT IN ('connection lost', 'timeout', 'server error'));
