-- Fails, naming what is missing, where the tables are not those that the migrations made. Reads no row.
SELECT id, tenant, ingest_id, project, status, items, payload, claims, failures, available_at, created_at, started_at,
    finished_at
FROM memory.jobs LIMIT 0;
SELECT id, tenant, project, kind, text, tags, words, job_id, position, created_at FROM memory.items LIMIT 0;
SELECT tenant, name, items, last_item_at FROM memory.projects LIMIT 0;
SELECT id, tenant, digest, text, times_learnt, first_learnt_at, last_learnt_at FROM memory.skills LIMIT 0;
SELECT 'memory.words'::regconfig;
