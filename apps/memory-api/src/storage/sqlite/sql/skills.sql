SELECT digest, text, times_learnt, first_learnt_at, last_learnt_at
FROM skills
WHERE tenant = :tenant AND (:before IS NULL OR id < (SELECT id FROM skills WHERE tenant = :tenant AND digest = :before))
ORDER BY id DESC
LIMIT :limit
