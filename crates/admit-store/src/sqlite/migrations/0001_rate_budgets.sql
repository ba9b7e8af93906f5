-- The closed set of scopes. Each store adds those it was built with; a CHECK would have to be rebuilt with its table.
CREATE TABLE rate_budget_scopes (
    scope TEXT PRIMARY KEY NOT NULL
) STRICT, WITHOUT ROWID;

-- One row a bucket. The budget is no column: it travels with every take.
CREATE TABLE rate_budgets (
    scope       TEXT    NOT NULL REFERENCES rate_budget_scopes (scope),
    bucket_key  TEXT    NOT NULL CHECK (length(bucket_key) = 36), -- in the form of a UUID
    tokens      REAL    NOT NULL CHECK (tokens >= 0 AND tokens < 9e999), -- infinity; NaN is NULL
    refilled_at INTEGER NOT NULL                              -- microseconds since 1970 (UTC), to the year 9999
        CHECK (refilled_at BETWEEN 0 AND 253402300799999999),
    PRIMARY KEY (scope, bucket_key)
) STRICT, WITHOUT ROWID;

-- For the idle sweep.
CREATE INDEX rate_budgets_refilled_at ON rate_budgets (refilled_at);
