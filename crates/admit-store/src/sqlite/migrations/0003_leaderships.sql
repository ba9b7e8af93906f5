-- Who does the work that one process is enough for, and until when (microseconds since 1970, UTC, to the year 9999).
CREATE TABLE leaderships (
    name        TEXT    PRIMARY KEY NOT NULL,
    holder      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL CHECK (lease_until BETWEEN 0 AND 253402300799999999)
) STRICT, WITHOUT ROWID;
