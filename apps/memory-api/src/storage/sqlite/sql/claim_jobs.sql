-- Queued jobs, and running ones whose lease has lapsed: for both, `available_at` has come.
UPDATE jobs
SET status = 'running', claims = claims + 1, available_at = :lease_until, started_at = coalesce(started_at, :now)
WHERE id IN (
    SELECT id
    FROM jobs
    WHERE status IN ('queued', 'running') AND available_at <= :now
    ORDER BY available_at
    LIMIT :most
)
RETURNING id, tenant, project, payload, claims, failures
