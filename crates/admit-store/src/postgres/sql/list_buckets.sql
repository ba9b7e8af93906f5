-- One page of the buckets of a scope, as one row of arrays; NULLs if there are none. $2 is the last key of the page before.
SELECT array_agg(bucket_key ORDER BY bucket_key), array_agg(tokens ORDER BY bucket_key),
       array_agg(refilled_at ORDER BY bucket_key)
FROM (
    SELECT bucket_key, tokens, refilled_at FROM {schema}.rate_budgets
    WHERE scope = $1 AND ($2::uuid IS NULL OR bucket_key > $2)
    ORDER BY bucket_key
    LIMIT $3
) AS page
