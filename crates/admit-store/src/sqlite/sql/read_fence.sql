SELECT last FROM idempotency_fence WHERE only = 1
