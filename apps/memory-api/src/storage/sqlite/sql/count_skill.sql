INSERT INTO skills (tenant, digest, text, times_learnt, first_learnt_at, last_learnt_at)
VALUES (:tenant, :digest, :text, :times, :now, :now)
ON CONFLICT (tenant, digest) DO UPDATE
SET times_learnt = times_learnt + excluded.times_learnt,
    last_learnt_at = max(last_learnt_at, excluded.last_learnt_at)
