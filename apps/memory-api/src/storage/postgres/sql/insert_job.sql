-- $7 is the moment, or null for the server's clock; so in every statement that takes one.
INSERT INTO memory.jobs (id, tenant, ingest_id, project, status, items, payload, available_at, created_at)
SELECT $1, $2, $3, $4, 'queued', $5, $6, moment, moment
FROM coalesce($7, clock_timestamp()) AS moment
