SELECT id, text, times_learnt, first_learnt_at, last_learnt_at
FROM skills
WHERE tenant = :tenant AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit
