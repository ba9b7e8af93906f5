UPDATE memory.jobs
SET failures = failures + 1,
    status = CASE WHEN failures + 1 < $3 THEN 'queued' ELSE 'failed' END,
    finished_at = CASE WHEN failures + 1 < $3 THEN NULL ELSE coalesce($5, clock_timestamp()) END,
    available_at = coalesce($5, clock_timestamp()) + $4 * interval '1 microsecond'
WHERE id = $1 AND status = 'running' AND claims = $2
