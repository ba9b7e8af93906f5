INSERT INTO api_keys (sha256, tenant, plan, name, created_at) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING
