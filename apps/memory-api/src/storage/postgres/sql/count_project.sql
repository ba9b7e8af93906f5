INSERT INTO memory.projects AS project (tenant, name, items, last_item_at)
VALUES ($1, $2, $3, coalesce($4, clock_timestamp()))
ON CONFLICT (tenant, name) DO UPDATE
SET items = project.items + excluded.items,
    last_item_at = greatest(project.last_item_at, excluded.last_item_at)
