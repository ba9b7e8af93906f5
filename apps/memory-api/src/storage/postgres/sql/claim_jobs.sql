-- Queued jobs, and running ones whose lease has lapsed: for both, `available_at` has come. Rows that another worker is
-- claiming are skipped, so that workers do not wait for each other.
WITH moment AS MATERIALIZED (
    SELECT coalesce($3, clock_timestamp()) AS now
),
due AS MATERIALIZED (
    SELECT id
    FROM memory.jobs
    WHERE status IN ('queued', 'running') AND available_at <= (SELECT now FROM moment)
    ORDER BY available_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE memory.jobs
SET status = 'running',
    claims = claims + 1,
    available_at = moment.now + $2 * interval '1 microsecond',
    started_at = coalesce(started_at, moment.now)
FROM moment, due
WHERE jobs.id = due.id
RETURNING jobs.id, tenant, project, payload, claims, failures
