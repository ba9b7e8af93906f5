SELECT id, ingest_id, project, status, items, failures, created_at, started_at, finished_at
FROM jobs
WHERE id = :id AND tenant = :tenant
