-- Who does the work that one process is enough for, and until when (microseconds since 1970, UTC).
CREATE TABLE leaderships (
    name        TEXT    PRIMARY KEY NOT NULL,
    holder      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
