-- What the memory API keeps. Times are microseconds since 1970, as in the tables of the budgets beside these.

CREATE TABLE jobs (
    id           BLOB    NOT NULL PRIMARY KEY,  -- A UUID.
    tenant       TEXT    NOT NULL,
    ingest_id    TEXT    NOT NULL,
    project      TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (status IN ('queued', 'running', 'done', 'failed')),
    items        INTEGER NOT NULL,
    payload      TEXT,                          -- The items as JSON, until they are in their table.
    claims       INTEGER NOT NULL DEFAULT 0,    -- A worker may finish only what it claimed last.
    failures     INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER NOT NULL,              -- Until then no worker claims it: the lease, or a pause after a failure.
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER
) STRICT;

-- Small: it holds only what is not finished.
CREATE INDEX jobs_open ON jobs (available_at) WHERE status IN ('queued', 'running');
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE items (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT    NOT NULL,
    project    TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    text       TEXT    NOT NULL,
    tags       TEXT    NOT NULL,                -- A JSON list.
    job_id     BLOB    NOT NULL,
    position   INTEGER NOT NULL,                -- In its batch.
    created_at INTEGER NOT NULL,
    UNIQUE (job_id, position)
) STRICT;

CREATE INDEX items_of_tenant ON items (tenant);
CREATE INDEX items_of_project ON items (tenant, project);

-- The words of each item, by the item's id. `owner` is a word for the tenant, so that the index itself narrows a search
-- to the tenant's items. The words are kept beside their index, so that a search can count those that it found.
CREATE VIRTUAL TABLE item_words USING fts5 (owner, words, tokenize = 'porter unicode61');

CREATE TABLE projects (
    tenant       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    items        INTEGER NOT NULL,
    last_item_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE skills (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,  -- In the order in which they were first learnt.
    tenant          TEXT    NOT NULL,
    digest          BLOB    NOT NULL,                   -- SHA-256 of the text.
    text            TEXT    NOT NULL,
    times_learnt    INTEGER NOT NULL,
    first_learnt_at INTEGER NOT NULL,
    last_learnt_at  INTEGER NOT NULL,
    UNIQUE (tenant, digest)
) STRICT;

CREATE INDEX skills_of_tenant ON skills (tenant);
