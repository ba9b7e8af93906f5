UPDATE idempotency_fence SET last = ?1 WHERE only = 1
