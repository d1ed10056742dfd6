-- One snapshot for several statements that only read.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
