-- Emulated: a table of the shape that River's has, written anew, and its indexes.
--
-- `peers.rows` running jobs whose client was lost two hours ago, as many that have just begun, and as
-- many completed ones. A rescue appends to `errors`, in the job's own row.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

CREATE SCHEMA river;
CREATE TYPE river.state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending',
	'retryable', 'running', 'scheduled');
CREATE TABLE river.job (
	id bigserial PRIMARY KEY,
	state river.state NOT NULL DEFAULT 'available',
	attempt smallint NOT NULL DEFAULT 0,
	max_attempts smallint NOT NULL DEFAULT 25,
	attempted_at timestamptz,
	created_at timestamptz NOT NULL DEFAULT now(),
	finalized_at timestamptz,
	scheduled_at timestamptz NOT NULL DEFAULT now(),
	priority smallint NOT NULL DEFAULT 1,
	args jsonb NOT NULL DEFAULT '{}',
	attempted_by text[],
	errors jsonb[],
	kind text NOT NULL,
	metadata jsonb NOT NULL DEFAULT '{}',
	queue text NOT NULL DEFAULT 'default',
	tags varchar(255)[] NOT NULL DEFAULT '{}',
	unique_key bytea,
	unique_states bit(8),
	CHECK ((finalized_at IS NOT NULL) = (state IN ('cancelled', 'completed', 'discarded')))
);
CREATE INDEX ON river.job (kind);
CREATE INDEX ON river.job (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX ON river.job (state, queue, priority, scheduled_at, id);
CREATE INDEX ON river.job USING gin (args);
CREATE INDEX ON river.job USING gin (metadata);
CREATE UNIQUE INDEX ON river.job (unique_key) WHERE unique_key IS NOT NULL;

INSERT INTO river.job (state, kind, args, attempt, attempted_at, attempted_by, finalized_at)
SELECT (CASE kind WHEN 'ended' THEN 'completed' ELSE 'running' END)::river.state, 'work',
       jsonb_build_object('n', i), 1,
       now() - CASE kind WHEN 'held' THEN interval '0' ELSE interval '2 hours' END,
       ARRAY['client-' || i % 64], CASE kind WHEN 'ended' THEN now() END
  FROM (VALUES (1, 'ended'), (2, 'held'), (3, 'lost')) k (place, kind),
       generate_series(1, current_setting('peers.rows')::int) i
 ORDER BY place, i;
