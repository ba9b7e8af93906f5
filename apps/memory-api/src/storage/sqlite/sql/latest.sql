SELECT id, job_id, position, project, kind, text, tags, created_at
FROM items
WHERE tenant = :tenant
  AND id <= :snapshot
  AND (:after IS NULL OR id < :after)
  AND (:project IS NULL OR project = :project)
  AND (:kind IS NULL OR kind = :kind)
ORDER BY id DESC
LIMIT :limit
