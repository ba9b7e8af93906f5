SELECT id, job_id, position, project, kind, text, tags, created_at
FROM memory.items
WHERE tenant = $1
  AND ($2 IS NULL OR project = $2)
  AND ($3 IS NULL OR kind = $3)
  AND id <= $4
  AND ($5 IS NULL OR id < $5)
ORDER BY id DESC
LIMIT $6
