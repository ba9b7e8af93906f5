-- The index on refilled_at holds the primary key too, so only the rows to delete are looked up.
DELETE FROM rate_budgets WHERE (scope, bucket_key) IN (
    SELECT scope, bucket_key FROM rate_budgets WHERE refilled_at < ?1 ORDER BY refilled_at LIMIT ?2
)
