-- A debit that matches no row, locks none and writes none if the bucket holds too little. $1 to $5 as in single_statement.sql.
UPDATE single.rate_budgets AS bucket SET
    tokens = least($5::float8, tokens
        + greatest(0, extract(epoch FROM clock_timestamp() - refilled_at)::float8) * $4::float8) - $3::float8,
    refilled_at = greatest(refilled_at, clock_timestamp())
WHERE scope = $1 AND bucket_key = $2
    AND least($5, tokens + greatest(0, extract(epoch FROM clock_timestamp() - refilled_at)::float8) * $4) >= $3
RETURNING tokens
