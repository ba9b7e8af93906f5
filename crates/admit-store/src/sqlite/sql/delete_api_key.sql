DELETE FROM api_keys WHERE sha256 = ?1
