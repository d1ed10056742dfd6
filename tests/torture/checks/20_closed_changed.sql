-- No closed attempt or node execution differs from what it was when it was first seen closed.
SELECT c.run_id, format('%s %s: %s was first seen closed, now it is %s', c.kind, c.key, c.row,
           coalesce(f.row, 'gone')) AS what
  FROM torture.copies c
  LEFT JOIN (SELECT 'attempt' AS kind, run_id::text, attempt_no::text AS key, a::text AS row
               FROM lease.run_attempts a
              UNION ALL
             SELECT 'execution', run_id, node_id || ' ' || attempt_no, e::text
               FROM lease.node_executions e) f
         ON f.kind = c.kind AND f.run_id = c.run_id AND f.key = c.key
 WHERE f.row IS DISTINCT FROM c.row;
