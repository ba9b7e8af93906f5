-- The expression is the one that is indexed.
DELETE FROM idempotency_records WHERE rowid IN (
    SELECT rowid FROM idempotency_records WHERE max(expires_at, ifnull(lease_until, 0)) <= ?1 LIMIT ?2
)
