INSERT INTO jobs (id, tenant, ingest_id, project, status, items, payload, available_at, created_at)
VALUES (:id, :tenant, :ingest_id, :project, 'queued', :items, :payload, :now, :now)
