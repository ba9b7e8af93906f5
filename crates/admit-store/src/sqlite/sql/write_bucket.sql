INSERT INTO rate_budgets (scope, bucket_key, tokens, refilled_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (scope, bucket_key) DO UPDATE SET tokens = excluded.tokens, refilled_at = excluded.refilled_at
