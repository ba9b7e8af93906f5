-- The functions whose searches have methods of planning turned off: where the table has one row, no other method is left, and what is
-- turned off counts as a cost of ten thousand million. Above a hundred thousand the server compiles a plan before it runs it, which
-- takes some 200 ms, each time anew.
ALTER FUNCTION {schema}.take SET jit = off;
ALTER FUNCTION {schema}.peek SET jit = off;
ALTER FUNCTION {schema}.refund SET jit = off;
ALTER FUNCTION {schema}.take_one SET jit = off;
ALTER FUNCTION {schema}.take_each SET jit = off;
ALTER FUNCTION {schema}.take_many SET jit = off;
ALTER FUNCTION {schema}.held_buckets SET jit = off;
ALTER FUNCTION {schema}.admit SET jit = off;
ALTER FUNCTION {schema}.delete_idle_pages SET jit = off;
ALTER FUNCTION {schema}.idempotency_look SET jit = off;
ALTER FUNCTION {schema}.idempotency_claim SET jit = off;
ALTER FUNCTION {schema}.idempotency_renew SET jit = off;
ALTER FUNCTION {schema}.idempotency_complete SET jit = off;
ALTER FUNCTION {schema}.idempotency_release SET jit = off;
ALTER FUNCTION {schema}.idempotency_delete_expired SET jit = off;
ALTER FUNCTION {schema}.raise_retention SET jit = off;
