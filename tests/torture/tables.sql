-- What the checker keeps beside the history, in a schema of its own: filled in at the end, when
-- nothing stops the server any more.
CREATE SCHEMA torture;

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
