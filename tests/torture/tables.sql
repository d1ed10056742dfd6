-- What the checker keeps beside the history, in a schema of its own. All but the beats are filled in
-- at the end, when nothing stops the server any more.
CREATE SCHEMA torture;

-- Every version of the heartbeat row, as it came; NULL: it was deleted.
CREATE TABLE torture.beats (
    place          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at        timestamptz,
    protect_from   timestamptz,
    amnesty_until  timestamptz,
    after          interval
);
CREATE FUNCTION torture.note_beat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO torture.beats DEFAULT VALUES;
    ELSE
        INSERT INTO torture.beats (beat_at, protect_from, amnesty_until, after)
        VALUES (NEW.beat_at, NEW.protect_from, NEW.amnesty_until, NEW.after);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_beat AFTER INSERT OR UPDATE OR DELETE ON lease.heartbeat
    FOR EACH ROW EXECUTE FUNCTION torture.note_beat();

-- The workers' files: a line for each call before it is sent (result "sent") and one for its result.
CREATE UNLOGGED TABLE torture.acts (
    worker      text,    -- place in the fleet, and how often it was started there
    at          bigint,  -- microseconds of CLOCK_BOOTTIME, the same clock for all workers
    sent        bigint,  -- the same, before the request was sent
    call        text,    -- its identity, the same when it is tried again
    try         integer,
    verb        text,
    run_id      text,
    attempt_no  integer,
    owner       text,
    result      text,    -- sent; ok; a refusal; an error
    unknown     boolean, -- of an error: whether it may have taken effect
    changed     boolean,
    now         bigint,  -- of a grant: database time in microseconds
    ends        bigint,  -- of a grant: lease_expires_at
    local_end   bigint,  -- of a grant
    word        text,    -- the node, or the status that the run is to have
    sqlstate    text,
    number      integer, -- the node execution
    advice      text,    -- of an error: what liblease advises
    message     text
);

-- Closed attempts and node executions, as they were when they were first seen closed.
CREATE UNLOGGED TABLE torture.copies (
    kind   text,
    run_id text,
    key    text,
    row    text
);

-- What a consumer that followed the events was given.
CREATE UNLOGGED TABLE torture.followed (
    place     bigint, -- 1, 2, 3 … in the order in which they came
    event_id  bigint,
    run_id    text
);

CREATE FUNCTION torture.instant(microseconds bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN timestamptz 'epoch' + microseconds * interval '1 microsecond';
