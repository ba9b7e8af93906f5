SELECT job_id, position
FROM memory.items
WHERE tenant = $1
ORDER BY id DESC
LIMIT 1
