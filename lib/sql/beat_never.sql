-- No amnesty: without the row every lease ends when the clock says so.
DELETE FROM lease.heartbeat;
