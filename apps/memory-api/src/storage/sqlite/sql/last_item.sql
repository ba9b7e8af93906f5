SELECT job_id, position
FROM items
WHERE tenant = :tenant
ORDER BY id DESC
LIMIT 1
