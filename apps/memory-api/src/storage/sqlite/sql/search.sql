-- The page behind item :after_position of job :after_job, among the items up to the one that was last at the first page.
--
-- The more of an item's words are among those searched for, the better it is. This is BM25's weight of a term without its
-- two averages over all items (how rare a word is, how long an item is; 50 words stand for the latter): they change with
-- every item that arrives, also another tenant's, and would move items from one page to another while a client reads on.
WITH found AS MATERIALIZED (
    SELECT
        items.id,
        items.job_id,
        items.position,
        length(highlight(item_words, 1, char(1), '')) - length(item_words.words) AS matches,
        length(item_words.words) - length(replace(item_words.words, ' ', '')) + 1 AS length
    FROM item_words
    JOIN items ON items.id = item_words.rowid
    WHERE item_words MATCH :match
      AND items.id <= (
          SELECT id FROM items WHERE tenant = :tenant AND job_id = :last_job AND position = :last_position
      )
      AND items.tenant = :tenant
      AND (:project IS NULL OR items.project = :project)
      AND (:kind IS NULL OR items.kind = :kind)
),
hits AS MATERIALIZED (
    SELECT id, job_id, position, matches / (matches + 0.3 + 0.9 * length / 50.0) AS rank
    FROM found
),
page AS (
    SELECT id, rank
    FROM hits
    WHERE
        :after_job IS NULL
        OR (-rank, -id) > (SELECT -rank, -id FROM hits WHERE job_id = :after_job AND position = :after_position)
    ORDER BY rank DESC, id DESC
    LIMIT :limit
)
SELECT items.job_id, items.position, project, kind, text, tags, created_at
FROM page
JOIN items ON items.id = page.id
ORDER BY page.rank DESC, page.id DESC
