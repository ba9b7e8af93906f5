DELETE FROM memory.jobs
WHERE id IN (
    SELECT id
    FROM memory.jobs
    WHERE finished_at < coalesce($3, clock_timestamp()) - $1 * interval '1 microsecond'
    ORDER BY finished_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
