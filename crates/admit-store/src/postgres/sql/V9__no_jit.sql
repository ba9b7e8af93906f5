-- The older functions whose searches have methods of planning turned off are not compiled either, for the reason told in V6.
ALTER FUNCTION {schema}.take SET jit = off;
ALTER FUNCTION {schema}.peek SET jit = off;
ALTER FUNCTION {schema}.refund SET jit = off;
ALTER FUNCTION {schema}.idempotency_look SET jit = off;
ALTER FUNCTION {schema}.idempotency_claim SET jit = off;
ALTER FUNCTION {schema}.idempotency_renew SET jit = off;
ALTER FUNCTION {schema}.idempotency_complete SET jit = off;
ALTER FUNCTION {schema}.idempotency_release SET jit = off;
ALTER FUNCTION {schema}.idempotency_delete_expired SET jit = off;
ALTER FUNCTION {schema}.raise_retention SET jit = off;
