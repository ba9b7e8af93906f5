UPDATE jobs
SET status = 'done', payload = NULL, finished_at = :now
WHERE id = :id AND status = 'running' AND claims = :claim
