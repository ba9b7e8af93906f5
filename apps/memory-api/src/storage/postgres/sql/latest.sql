-- The page behind item $7 of job $6, among the items up to item $5 of job $4.
SELECT job_id, position, project, kind, text, tags, created_at
FROM memory.items
WHERE tenant = $1
  AND ($2 IS NULL OR project = $2)
  AND ($3 IS NULL OR kind = $3)
  AND id <= (SELECT id FROM memory.items WHERE tenant = $1 AND job_id = $4 AND position = $5)
  AND ($6 IS NULL OR id < (SELECT id FROM memory.items WHERE tenant = $1 AND job_id = $6 AND position = $7))
ORDER BY id DESC
LIMIT $8
