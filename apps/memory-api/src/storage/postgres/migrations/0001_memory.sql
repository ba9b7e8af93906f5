-- What the memory API keeps, in the schema that its migrations have made.

CREATE TABLE memory.jobs (
    id           uuid        NOT NULL PRIMARY KEY,
    tenant       text        NOT NULL,
    ingest_id    text        NOT NULL,
    project      text        NOT NULL,
    status       text        NOT NULL CHECK (status IN ('queued', 'running', 'done', 'failed')),
    items        bigint      NOT NULL,
    payload      text,                          -- The items as JSON, until they are in their table.
    claims       bigint      NOT NULL DEFAULT 0, -- A worker may finish only what it claimed last.
    failures     integer     NOT NULL DEFAULT 0,
    available_at timestamptz NOT NULL,          -- Until then no worker claims it: the lease, or a pause after a failure.
    created_at   timestamptz NOT NULL,
    started_at   timestamptz,
    finished_at  timestamptz
);

-- Small: it holds only what is not finished.
CREATE INDEX jobs_open ON memory.jobs (available_at) WHERE status IN ('queued', 'running');
CREATE INDEX jobs_finished ON memory.jobs (finished_at) WHERE finished_at IS NOT NULL;

-- English stems, and no stop words: what is asked for is found, even where it is "the who".
CREATE TEXT SEARCH DICTIONARY memory.stem (TEMPLATE = pg_catalog.snowball, LANGUAGE = english);
CREATE TEXT SEARCH CONFIGURATION memory.words (COPY = pg_catalog.simple);
ALTER TEXT SEARCH CONFIGURATION memory.words ALTER MAPPING FOR asciiword, word WITH memory.stem;

CREATE TABLE memory.items (
    id         bigint      NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant     text        NOT NULL,
    project    text        NOT NULL,
    kind       text        NOT NULL,
    text       text        NOT NULL,
    tags       text        NOT NULL,            -- A JSON list.
    words      tsvector    NOT NULL,            -- Of the text and the tags.
    job_id     uuid        NOT NULL,
    position   bigint      NOT NULL,            -- In its batch.
    created_at timestamptz NOT NULL,
    UNIQUE (job_id, position)
);

CREATE INDEX items_of_tenant ON memory.items (tenant, id);
CREATE INDEX items_of_project ON memory.items (tenant, project, id);
CREATE INDEX items_words ON memory.items USING gin (words);

CREATE TABLE memory.projects (
    tenant       text        NOT NULL,
    name         text        NOT NULL COLLATE "C",
    items        bigint      NOT NULL,
    last_item_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE memory.skills (
    id              bigint      NOT NULL PRIMARY KEY GENERATED ALWAYS AS IDENTITY, -- In the order of first learning.
    tenant          text        NOT NULL,
    digest          bytea       NOT NULL,       -- SHA-256 of the text, which may be too long for an index.
    text            text        NOT NULL,
    times_learnt    bigint      NOT NULL,
    first_learnt_at timestamptz NOT NULL,
    last_learnt_at  timestamptz NOT NULL,
    UNIQUE (tenant, digest)
);

CREATE INDEX skills_of_tenant ON memory.skills (tenant, id);
