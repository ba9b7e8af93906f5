SELECT fingerprint, fence, lease_until, expires_at, status, headers, body
FROM idempotency_records WHERE record_key = ?1
