UPDATE jobs
SET failures = failures + 1,
    status = CASE WHEN failures + 1 < :most THEN 'queued' ELSE 'failed' END,
    finished_at = CASE WHEN failures + 1 < :most THEN NULL ELSE :now END,
    available_at = :retry_at
WHERE id = :id AND status = 'running' AND claims = :claim
