SELECT name, items, last_item_at
FROM memory.projects
WHERE tenant = $1 AND ($2 IS NULL OR name > $2)
ORDER BY name
LIMIT $3
