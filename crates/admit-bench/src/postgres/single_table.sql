-- The table of the rate budget document. It is vacuumed when Admit's is, so that no side has more dead rows to pass over.
CREATE SCHEMA single;
CREATE TABLE single.rate_budgets (
    scope text NOT NULL,
    bucket_key uuid NOT NULL,
    tokens double precision NOT NULL CHECK (tokens >= 0),
    refilled_at timestamptz NOT NULL,
    PRIMARY KEY (scope, bucket_key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX ON single.rate_budgets (refilled_at);
