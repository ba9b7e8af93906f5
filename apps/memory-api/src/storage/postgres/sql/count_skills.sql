-- In the order of the digests, as every job has it: two jobs with the same skills cannot wait for each other in a ring.
INSERT INTO memory.skills AS skill (tenant, digest, text, times_learnt, first_learnt_at, last_learnt_at)
SELECT $1, digest, text, times, moment, moment
FROM unnest($2, $3, $4) WITH ORDINALITY AS learnt (digest, text, times, place),
    coalesce($5, clock_timestamp()) AS moment
ORDER BY place
ON CONFLICT (tenant, digest) DO UPDATE
SET times_learnt = skill.times_learnt + excluded.times_learnt,
    last_learnt_at = greatest(skill.last_learnt_at, excluded.last_learnt_at)
