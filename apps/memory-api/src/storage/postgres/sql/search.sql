-- The page behind item $7 of job $6, among the items up to item $5 of job $4. The rank of an item depends on itself alone,
-- so the order holds while items are added.
WITH hits AS MATERIALIZED (
    SELECT id, job_id, position, ts_rank_cd(words, query) AS rank
    FROM memory.items, plainto_tsquery('memory.words', $9) AS query
    WHERE words @@ query
      AND tenant = $1
      AND ($2 IS NULL OR project = $2)
      AND ($3 IS NULL OR kind = $3)
      AND id <= (SELECT id FROM memory.items WHERE tenant = $1 AND job_id = $4 AND position = $5)
),
page AS (
    SELECT id, rank
    FROM hits
    WHERE $6 IS NULL OR (-rank, -id) > (SELECT -rank, -id FROM hits WHERE job_id = $6 AND position = $7)
    ORDER BY rank DESC, id DESC
    LIMIT $8
)
SELECT job_id, position, project, kind, text, tags, created_at
FROM page
JOIN memory.items ON items.id = page.id
ORDER BY page.rank DESC, page.id DESC
