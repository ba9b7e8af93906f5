UPDATE memory.jobs
SET status = 'done', payload = NULL, finished_at = coalesce($3, clock_timestamp())
WHERE id = $1 AND status = 'running' AND claims = $2
