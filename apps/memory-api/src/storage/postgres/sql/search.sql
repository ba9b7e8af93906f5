-- The page behind item $6, among the items up to $5. The rank of an item depends on itself alone, so the order holds
-- while items are added.
WITH hits AS MATERIALIZED (
    SELECT id, ts_rank_cd(words, query) AS rank
    FROM memory.items, plainto_tsquery('memory.words', $1) AS query
    WHERE words @@ query
      AND tenant = $2
      AND ($3 IS NULL OR project = $3)
      AND ($4 IS NULL OR kind = $4)
      AND id <= $5
),
page AS (
    SELECT id, rank
    FROM hits
    WHERE $6 IS NULL OR (-rank, -id) > (SELECT -rank, -id FROM hits WHERE id = $6)
    ORDER BY rank DESC, id DESC
    LIMIT $7
)
SELECT items.id, job_id, position, project, kind, text, tags, created_at
FROM page
JOIN memory.items ON items.id = page.id
ORDER BY page.rank DESC, page.id DESC
