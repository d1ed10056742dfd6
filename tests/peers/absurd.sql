-- Emulated: tables and a function of the shape that absurd's have, written anew.
--
-- A task and its attempts, in tables of a queue that the function gets by name. `peers.rows` running
-- attempts whose claim is over, as many whose claim holds, and as many completed ones. For each lost
-- attempt the function writes its end and the reason, a row for the next attempt, and the task.
SELECT set_config('peers.rows', coalesce(current_setting('peers.rows', true), '1000'), false);

CREATE SCHEMA absurd;
CREATE TABLE absurd.tasks_work (
	task_id uuid PRIMARY KEY,
	name text NOT NULL,
	params jsonb NOT NULL,
	retry jsonb,
	max_attempts integer,
	state text NOT NULL CHECK (state IN ('pending', 'running', 'completed', 'failed')),
	attempts integer NOT NULL DEFAULT 0,
	last_attempt uuid
) WITH (fillfactor = 70);
CREATE TABLE absurd.attempts_work (
	attempt_id uuid PRIMARY KEY,
	task_id uuid NOT NULL,
	attempt integer NOT NULL,
	state text NOT NULL CHECK (state IN ('pending', 'running', 'completed', 'failed')),
	claimed_by text,
	claim_expires_at timestamptz,
	available_at timestamptz NOT NULL,
	started_at timestamptz,
	completed_at timestamptz,
	failed_at timestamptz,
	reason jsonb,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
CREATE INDEX ON absurd.attempts_work (state, available_at);
CREATE INDEX ON absurd.attempts_work (task_id);
CREATE TABLE absurd.waits_work (
	attempt_id uuid NOT NULL,
	step text NOT NULL,
	task_id uuid NOT NULL,
	PRIMARY KEY (attempt_id, step)
);

-- An id that begins with the time, as theirs do.
CREATE FUNCTION absurd.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
	SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') ||
		substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid
$$;

CREATE FUNCTION absurd.fail_attempt(queue text, lost uuid, why jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	task uuid;
	number integer;
	most integer;
	retry jsonb;
	next uuid := absurd.new_id();
	at timestamptz := clock_timestamp();
BEGIN
	EXECUTE format('SELECT task_id, attempt FROM absurd.%I WHERE attempt_id = $1 '
		'AND state = ''running'' FOR UPDATE', 'attempts_' || queue) INTO task, number USING lost;
	EXECUTE format('SELECT max_attempts, retry FROM absurd.%I WHERE task_id = $1 FOR UPDATE',
		'tasks_' || queue) INTO most, retry USING task;
	EXECUTE format('UPDATE absurd.%I SET state = ''failed'', failed_at = $2, reason = $3 '
		'WHERE attempt_id = $1', 'attempts_' || queue) USING lost, at, why;
	IF most IS NULL OR number < most THEN
		EXECUTE format('INSERT INTO absurd.%I (attempt_id, task_id, attempt, state, available_at) '
			'VALUES ($1, $2, $3, ''pending'', $4)', 'attempts_' || queue)
			USING next, task, number + 1, at;
	END IF;
	EXECUTE format('UPDATE absurd.%I SET state = $2, attempts = greatest(attempts, $3), '
		'last_attempt = $4 WHERE task_id = $1', 'tasks_' || queue)
		USING task, CASE WHEN most IS NULL OR number < most THEN 'pending' ELSE 'failed' END,
			number + 1, next;
	EXECUTE format('DELETE FROM absurd.%I WHERE attempt_id = $1', 'waits_' || queue) USING lost;
END
$$;

CREATE FUNCTION absurd.fail_lost(queue text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	lost record;
	failed bigint := 0;
BEGIN
	FOR lost IN EXECUTE format('SELECT attempt_id, claimed_by, claim_expires_at, attempt '
		'FROM absurd.%I WHERE state = ''running'' AND claim_expires_at <= $1 '
		'FOR UPDATE SKIP LOCKED', 'attempts_' || queue) USING clock_timestamp()
	LOOP
		PERFORM absurd.fail_attempt(queue, lost.attempt_id, jsonb_build_object(
			'name', 'claim over', 'worker', lost.claimed_by, 'at', lost.claim_expires_at,
			'attempt', lost.attempt));
		failed := failed + 1;
	END LOOP;
	RETURN failed;
END
$$;

CREATE TEMP TABLE kinds AS
SELECT kind, place, i, absurd.new_id() AS task_id, absurd.new_id() AS attempt_id
  FROM (VALUES (1, 'ended'), (2, 'held'), (3, 'lost')) k (place, kind),
       generate_series(1, current_setting('peers.rows')::int) i
 ORDER BY place, i;

INSERT INTO absurd.tasks_work (task_id, name, params, state, attempts, last_attempt)
SELECT task_id, 'work', jsonb_build_object('n', i),
       CASE kind WHEN 'ended' THEN 'completed' ELSE 'running' END, 1, attempt_id FROM kinds;
INSERT INTO absurd.attempts_work (attempt_id, task_id, attempt, state, claimed_by,
       claim_expires_at, available_at, started_at, completed_at)
SELECT attempt_id, task_id, 1, CASE kind WHEN 'ended' THEN 'completed' ELSE 'running' END,
       'worker-' || i % 64, now() + CASE kind WHEN 'held' THEN interval '1 day' ELSE interval '-1 s' END,
       now() - interval '1 hour', now() - interval '1 hour', CASE kind WHEN 'ended' THEN now() END
  FROM kinds;
DROP TABLE kinds;
