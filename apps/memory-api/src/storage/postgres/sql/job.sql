SELECT id, ingest_id, project, status, items, failures, created_at, started_at, finished_at
FROM memory.jobs
WHERE id = $1 AND tenant = $2
