-- Idle for longer than the sweeper's retention (?2), and than the one that the file keeps: the statement that deletes reads
-- it. A store raises it, and commits, before it takes by a budget that needs it; so what is written by such a budget is
-- written after a sweep that did not see it.
-- The index on refilled_at holds the primary key too, so only the rows to delete are looked up.
DELETE FROM rate_budgets WHERE (scope, bucket_key) IN (
    SELECT scope, bucket_key FROM rate_budgets
    WHERE refilled_at < ?1 - max(?2, ifnull((SELECT retention_micros FROM retention WHERE only = 1), 0))
    ORDER BY refilled_at LIMIT ?3
)
