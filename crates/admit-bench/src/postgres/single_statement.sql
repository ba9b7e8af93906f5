-- A take as the rate budget document describes it, in one conditional upsert. $1 scope, $2 key, $3 cost, $4 rate, $5 burst.
INSERT INTO single.rate_budgets AS bucket (scope, bucket_key, tokens, refilled_at)
VALUES ($1, $2, $5::float8 - $3::float8, clock_timestamp())
ON CONFLICT (scope, bucket_key) DO UPDATE SET
    tokens = least($5, bucket.tokens
        + greatest(0, extract(epoch FROM excluded.refilled_at - bucket.refilled_at)::float8) * $4::float8) - $3,
    refilled_at = greatest(bucket.refilled_at, excluded.refilled_at)
WHERE least($5, bucket.tokens
    + greatest(0, extract(epoch FROM excluded.refilled_at - bucket.refilled_at)::float8) * $4) >= $3
RETURNING tokens
