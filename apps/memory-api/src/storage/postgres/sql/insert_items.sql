-- One statement for all items of a job, in the order of the batch.
INSERT INTO memory.items (tenant, project, kind, text, tags, words, job_id, position, created_at)
SELECT $1, $2, kind, text, tags, to_tsvector('memory.words', words), $3, place - 1, coalesce($8, clock_timestamp())
FROM unnest($4, $5, $6, $7) WITH ORDINALITY AS item (kind, text, tags, words, place)
ORDER BY place
