-- Deletes a bucket, and tells how many there were: one or none.
WITH deleted AS (
    DELETE FROM {schema}.rate_budgets WHERE scope = $1 AND bucket_key = $2 RETURNING 1
)
SELECT count(*) FROM deleted
