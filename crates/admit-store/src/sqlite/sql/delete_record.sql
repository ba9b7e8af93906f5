DELETE FROM idempotency_records WHERE record_key = ?1
