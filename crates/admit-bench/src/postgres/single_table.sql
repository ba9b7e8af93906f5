-- The table of the rate budget document.
CREATE SCHEMA single;
CREATE TABLE single.rate_budgets (
    scope text NOT NULL,
    bucket_key uuid NOT NULL,
    tokens double precision NOT NULL CHECK (tokens >= 0),
    refilled_at timestamptz NOT NULL,
    PRIMARY KEY (scope, bucket_key)
);
CREATE INDEX ON single.rate_budgets (refilled_at);
