-- One row a key that was claimed. While it runs it has a lease; once completed, a status. A status without a body is
-- a tombstone: the response was too large to keep. Times are microseconds since 1970 (UTC), to the year 9999.
CREATE TABLE idempotency_records (
    record_key  BLOB    PRIMARY KEY NOT NULL CHECK (length(record_key) = 32),
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    fence       INTEGER NOT NULL,
    lease_until INTEGER CHECK (lease_until BETWEEN 0 AND 253402300799999999),
    expires_at  INTEGER NOT NULL CHECK (expires_at BETWEEN 0 AND 253402300799999999),
    status      INTEGER CHECK (status BETWEEN 0 AND 65535),
    headers     BLOB,
    body        BLOB,
    CHECK ((lease_until IS NULL) <> (status IS NULL)),
    CHECK ((headers IS NULL) = (body IS NULL)),
    CHECK (status IS NOT NULL OR body IS NULL)
) STRICT;

-- For the sweep: a run that holds its lease outlasts its time to live.
CREATE INDEX idempotency_records_over_at ON idempotency_records (max(expires_at, ifnull(lease_until, 0)));

-- The last fence, in one row: it grows with every claim, whatever becomes of the records.
CREATE TABLE idempotency_fence (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    last INTEGER NOT NULL
) STRICT;
INSERT INTO idempotency_fence VALUES (1, 0);
