-- ROWS buckets whose keys are those that the callers ask for. In the order of the index, which is then built as fast as it is read.
SET work_mem = '1GB';
INSERT INTO admit.rate_budgets (scope, bucket_key, tokens, refilled_at)
SELECT 'bench', encode(substr(sha256(int8send(SALT) || int8send(i)), 1, 16), 'hex')::uuid AS key, 1e8, clock_timestamp()
FROM generate_series(0, ROWS - 1) AS i
ORDER BY key;
VACUUM (ANALYZE) admit.rate_budgets;
