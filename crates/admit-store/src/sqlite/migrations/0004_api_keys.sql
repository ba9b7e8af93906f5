-- The API keys that a program knows, by their hash. Times are microseconds since 1970 (UTC), to the year 9999.
CREATE TABLE api_keys (
    sha256     BLOB    PRIMARY KEY NOT NULL CHECK (length(sha256) = 32),
    tenant     TEXT    NOT NULL CHECK (tenant <> ''),
    plan       TEXT    CHECK (plan <> ''),
    name       TEXT    CHECK (name <> ''),
    created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999)
) STRICT, WITHOUT ROWID;
