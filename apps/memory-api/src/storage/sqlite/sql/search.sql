-- The page behind item :after, among the items up to :snapshot. The rank of :after is worked out with the others: ranks
-- shift together as items are added, and the order holds.
WITH hits AS MATERIALIZED (
    SELECT items.id, item_words.rank
    FROM item_words
    JOIN items ON items.id = item_words.rowid
    WHERE item_words MATCH :match
      AND items.id <= :snapshot
      AND items.tenant = :tenant
      AND (:project IS NULL OR items.project = :project)
      AND (:kind IS NULL OR items.kind = :kind)
),
page AS (
    SELECT id, rank
    FROM hits
    WHERE :after IS NULL OR (rank, -id) > (SELECT rank, -id FROM hits WHERE id = :after)
    ORDER BY rank, id DESC
    LIMIT :limit
)
SELECT items.id, job_id, position, project, kind, text, tags, created_at
FROM page
JOIN items ON items.id = page.id
ORDER BY page.rank, page.id DESC
