SELECT digest, text, times_learnt, first_learnt_at, last_learnt_at
FROM memory.skills
WHERE tenant = $1 AND ($2 IS NULL OR id < (SELECT id FROM memory.skills WHERE tenant = $1 AND digest = $2))
ORDER BY id DESC
LIMIT $3
