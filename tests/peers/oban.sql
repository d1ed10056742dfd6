-- Emulated: a table of the shape that Oban's has, written anew, and its indexes.
--
-- `peers.rows` executing jobs whose node was lost two hours ago, as many that have just begun, and as
-- many completed ones. A rescue puts the state back, in place.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

CREATE SCHEMA oban;
CREATE TYPE oban.state AS ENUM ('available', 'scheduled', 'executing', 'retryable', 'completed',
	'discarded', 'cancelled');
CREATE TABLE oban.jobs (
	id bigserial PRIMARY KEY,
	state oban.state NOT NULL DEFAULT 'available',
	queue text NOT NULL DEFAULT 'default',
	worker text NOT NULL,
	args jsonb NOT NULL DEFAULT '{}',
	errors jsonb[] NOT NULL DEFAULT '{}',
	attempt integer NOT NULL DEFAULT 0,
	max_attempts integer NOT NULL DEFAULT 20,
	inserted_at timestamp NOT NULL DEFAULT timezone('UTC', now()),
	scheduled_at timestamp NOT NULL DEFAULT timezone('UTC', now()),
	attempted_at timestamp,
	completed_at timestamp,
	attempted_by text[],
	discarded_at timestamp,
	priority integer NOT NULL DEFAULT 0,
	tags text[] DEFAULT '{}',
	meta jsonb DEFAULT '{}',
	cancelled_at timestamp
);
CREATE INDEX ON oban.jobs (state, queue, priority, scheduled_at, id);
CREATE INDEX ON oban.jobs (state, cancelled_at);
CREATE INDEX ON oban.jobs (state, discarded_at);
CREATE INDEX ON oban.jobs USING gin (args);
CREATE INDEX ON oban.jobs USING gin (meta);

INSERT INTO oban.jobs (state, worker, args, attempt, attempted_at, attempted_by, completed_at)
SELECT (CASE kind WHEN 'ended' THEN 'completed' ELSE 'executing' END)::oban.state, 'Work',
       jsonb_build_object('n', i), 1,
       timezone('UTC', now()) - CASE kind WHEN 'held' THEN interval '0' ELSE interval '2 hours' END,
       ARRAY['node-' || i % 64, md5('owner ' || i)::uuid::text],
       CASE kind WHEN 'ended' THEN timezone('UTC', now()) END
  FROM (VALUES (1, 'ended'), (2, 'held'), (3, 'lost')) k (place, kind),
       generate_series(1, current_setting('peers.rows')::int) i
 ORDER BY place, i;
