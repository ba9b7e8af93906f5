SELECT name, items, last_item_at
FROM projects
WHERE tenant = :tenant AND (:after IS NULL OR name > :after)
ORDER BY name
LIMIT :limit
