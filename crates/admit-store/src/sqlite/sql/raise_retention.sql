INSERT INTO retention VALUES (1, ?1)
ON CONFLICT (only) DO UPDATE SET retention_micros = excluded.retention_micros
WHERE retention_micros < excluded.retention_micros
