DELETE FROM jobs
WHERE id IN (SELECT id FROM jobs WHERE finished_at < :before ORDER BY finished_at LIMIT :most)
