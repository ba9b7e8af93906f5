-- The page behind item :after_position of job :after_job, among the items up to the one that was last at the first page.
SELECT job_id, position, project, kind, text, tags, created_at
FROM items
WHERE tenant = :tenant
  AND id <= (SELECT id FROM items WHERE tenant = :tenant AND job_id = :last_job AND position = :last_position)
  AND (
      :after_job IS NULL
      OR id < (SELECT id FROM items WHERE tenant = :tenant AND job_id = :after_job AND position = :after_position)
  )
  AND (:project IS NULL OR project = :project)
  AND (:kind IS NULL OR kind = :kind)
ORDER BY id DESC
LIMIT :limit
