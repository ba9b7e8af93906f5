-- Adds a key, and tells how many were added: one, or none if it was there.
WITH added AS (
    INSERT INTO {schema}.api_keys (sha256, tenant, plan, name, created_at) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT count(*) FROM added
