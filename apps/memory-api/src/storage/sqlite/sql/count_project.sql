INSERT INTO projects (tenant, name, items, last_item_at)
VALUES (:tenant, :name, :items, :now)
ON CONFLICT (tenant, name) DO UPDATE
SET items = items + excluded.items, last_item_at = max(last_item_at, excluded.last_item_at)
