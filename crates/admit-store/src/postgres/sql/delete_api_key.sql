-- Deletes a key, and tells how many there were: one or none.
WITH deleted AS (DELETE FROM {schema}.api_keys WHERE sha256 = $1 RETURNING 1)
SELECT count(*) FROM deleted
