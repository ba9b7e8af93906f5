SELECT count(*) FROM memory.jobs WHERE status IN ('queued', 'running')
