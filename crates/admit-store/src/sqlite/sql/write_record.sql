INSERT INTO idempotency_records
    (record_key, fingerprint, fence, lease_until, expires_at, status, headers, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (record_key) DO UPDATE SET
    fingerprint = excluded.fingerprint, fence = excluded.fence, lease_until = excluded.lease_until,
    expires_at = excluded.expires_at, status = excluded.status, headers = excluded.headers, body = excluded.body
