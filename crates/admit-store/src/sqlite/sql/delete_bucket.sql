DELETE FROM rate_budgets WHERE scope = ?1 AND bucket_key = ?2
