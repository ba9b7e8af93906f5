-- The API keys that programs know, by their hash: the keys themselves are kept nowhere. Read whole, into memory.

CREATE TABLE {schema}.api_keys (
    sha256     bytea       NOT NULL CONSTRAINT api_keys_pkey PRIMARY KEY,
    tenant     text        NOT NULL,
    plan       text,
    name       text,
    created_at timestamptz NOT NULL,
    CONSTRAINT api_keys_sha256_check CHECK (octet_length(sha256) = 32),
    CONSTRAINT api_keys_texts_check CHECK (tenant <> '' AND plan <> '' AND name <> ''),
    CONSTRAINT api_keys_created_at_check
        CHECK (created_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
);

COMMENT ON TABLE {schema}.api_keys IS 'Whose API key is known, by its SHA-256';
COMMENT ON COLUMN {schema}.api_keys.plan IS 'What the tenant pays for; NULL for the plain budgets';
