-- One page of the buckets of a scope. Behind no key is behind the empty text.
SELECT bucket_key, tokens, refilled_at FROM rate_budgets WHERE scope = ?1 AND bucket_key > ?2 ORDER BY bucket_key LIMIT ?3
