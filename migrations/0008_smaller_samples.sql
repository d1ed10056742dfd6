-- 0008 smaller samples: an ANALYZE keeps its snapshot for a tenth of the time.
--
-- ANALYZE holds a snapshot while it reads its sample, and no renewal's old version goes away
-- meanwhile, in no table of the database. Its sample is 300 rows times the largest statistics target
-- of the table's columns, 30,000 by default, each from another page where a history is large. What the
-- statistics say decides nothing here: statements on the hot paths look everything up by an index
-- whatever they say. 3,000 rows are enough for the rest, which is reading by people.
-- docs/bench/README.md, "bloat_attempts", has the figures.

DO $$
DECLARE
    col record;
BEGIN
    FOR col IN SELECT a.attrelid::regclass AS relation, a.attname
                 FROM pg_catalog.pg_attribute a
                 JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
                WHERE c.relnamespace = 'lease'::regnamespace AND c.relkind = 'r'
                  AND a.attnum > 0 AND NOT a.attisdropped
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 10', col.relation, col.attname);
    END LOOP;
END
$$;
