-- The longest retention that a store was ever opened with, in microseconds. Every sweep goes by it, whoever runs it.
CREATE TABLE retention (
    only             INTEGER PRIMARY KEY CHECK (only = 1),
    retention_micros INTEGER NOT NULL CHECK (retention_micros >= 0)
) STRICT;
