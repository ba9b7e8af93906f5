SELECT sha256, tenant, plan, name, created_at FROM api_keys ORDER BY sha256 LIMIT ?1
