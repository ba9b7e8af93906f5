INSERT INTO items (tenant, project, kind, text, tags, job_id, position, created_at)
VALUES (:tenant, :project, :kind, :text, :tags, :job_id, :position, :now)
