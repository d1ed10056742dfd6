-- Emulated: what an application that keeps a fact per attempt has by an ORM, without any guard.
--
-- `peers.rows` running runs whose lease is over, as many whose lease holds, and as many completed
-- ones, each with its attempt; ids are random UUIDs as text, as in lease.runs.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

CREATE SCHEMA orm;
CREATE TABLE orm.runs (
	run_id text COLLATE "C" PRIMARY KEY,
	status text NOT NULL,
	version bigint NOT NULL DEFAULT 1,
	owner text,
	lease_expires_at timestamptz,
	created_at timestamptz NOT NULL DEFAULT now(),
	updated_at timestamptz NOT NULL DEFAULT now(),
	finished_at timestamptz
);
CREATE INDEX ON orm.runs (status, lease_expires_at);
CREATE TABLE orm.attempts (
	run_id text COLLATE "C" NOT NULL REFERENCES orm.runs,
	attempt_no integer NOT NULL,
	owner text NOT NULL,
	started_at timestamptz NOT NULL DEFAULT now(),
	finished_at timestamptz,
	outcome text,
	error_code text,
	PRIMARY KEY (run_id, attempt_no)
);
CREATE UNIQUE INDEX ON orm.attempts (run_id) WHERE finished_at IS NULL;

INSERT INTO orm.runs (run_id, status, owner, lease_expires_at, finished_at)
SELECT md5(kind || i)::uuid::text, CASE kind WHEN 'ended' THEN 'completed' ELSE 'running' END,
       'worker-' || i % 64 || ':' || md5('owner ' || i)::uuid,
       now() + CASE kind WHEN 'held' THEN interval '1 day' ELSE interval '-1 s' END,
       CASE kind WHEN 'ended' THEN now() END
  FROM (VALUES (1, 'ended'), (2, 'held'), (3, 'lost')) k (place, kind),
       generate_series(1, current_setting('peers.rows')::int) i
 ORDER BY place, i;
INSERT INTO orm.attempts (run_id, attempt_no, owner, finished_at, outcome)
SELECT run_id, 1, owner, finished_at, CASE WHEN finished_at IS NOT NULL THEN 'completed' END
  FROM orm.runs;
