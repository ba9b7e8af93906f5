-- All keys as one row of arrays; NULLs if there are none.
SELECT array_agg(sha256 ORDER BY sha256), array_agg(tenant ORDER BY sha256), array_agg(plan ORDER BY sha256),
       array_agg(name ORDER BY sha256), array_agg(created_at ORDER BY sha256)
FROM (SELECT * FROM {schema}.api_keys ORDER BY sha256 LIMIT $1) AS known
