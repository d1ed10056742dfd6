-- READ COMMITTED, whatever the session's default is: the look must see what was committed before
-- the lock was granted.
BEGIN ISOLATION LEVEL READ COMMITTED;
