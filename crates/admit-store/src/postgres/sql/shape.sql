-- What the migrations have made and is not there, or is another: one row, NULL if all is as it should be. $1 is the name
-- of the schema in quotes. Only what a right answer needs is looked for: an operator may have indexes, rights and storage as he likes.
WITH here AS (
    SELECT oid FROM pg_namespace WHERE format('"%s"', nspname) = $1
), wanted_tables(name, key) AS (
    VALUES
        ('rate_budgets', 'PRIMARY KEY (scope, bucket_key)'),
        ('idempotency_records', 'PRIMARY KEY (record_key)'),
        ('leaderships', 'PRIMARY KEY (name)'),
        ('api_keys', 'PRIMARY KEY (sha256)'),
        ('retention', 'PRIMARY KEY (one)')
), tables AS (
    SELECT w.*, c.oid, CASE WHEN c.oid IS NULL THEN format('the table %s', w.name) END AS lacks
    FROM wanted_tables AS w
    LEFT JOIN (pg_class AS c JOIN here ON c.relnamespace = here.oid) ON c.relname = w.name
        -- Buckets are found again by their physical address, which is one only within a plain table.
        AND (c.relkind = 'r' OR c.relkind = 'p' AND w.name <> 'rate_budgets')
), wanted_columns(of, name, type) AS (
    VALUES
        ('rate_budgets', 'scope', 'text'::regtype),
        ('rate_budgets', 'bucket_key', 'uuid'),
        ('rate_budgets', 'tokens', 'double precision'),
        ('rate_budgets', 'refilled_at', 'timestamptz'),
        ('idempotency_records', 'record_key', 'bytea'),
        ('idempotency_records', 'fingerprint', 'bytea'),
        ('idempotency_records', 'fence', 'bigint'),
        ('idempotency_records', 'lease_until', 'timestamptz'),
        ('idempotency_records', 'expires_at', 'timestamptz'),
        ('idempotency_records', 'status', 'integer'),
        ('idempotency_records', 'header_names', 'text[]'),
        ('idempotency_records', 'header_values', 'bytea[]'),
        ('idempotency_records', 'body', 'bytea'),
        ('leaderships', 'name', 'text'),
        ('leaderships', 'holder', 'text'),
        ('leaderships', 'fence', 'bigint'),
        ('leaderships', 'lease_until', 'timestamptz'),
        ('api_keys', 'sha256', 'bytea'),
        ('api_keys', 'tenant', 'text'),
        ('api_keys', 'plan', 'text'),
        ('api_keys', 'name', 'text'),
        ('api_keys', 'created_at', 'timestamptz'),
        ('retention', 'one', 'integer'),
        ('retention', 'retention_micros', 'bigint'),
        ('retention', 'statement_micros', 'bigint')
), wanted_functions(name, arguments) AS (
    VALUES
        ('level', '{double precision,timestamptz,timestamptz,double precision,double precision}'::regtype[]),
        ('debit', '{text,uuid,double precision,double precision,double precision,timestamptz}'),
        ('take', '{text[],uuid[],double precision[],double precision[],double precision[],timestamptz,integer}'),
        ('elapsed', '{timestamptz,timestamptz}'),
        ('take_one', '{text,uuid,double precision,double precision,double precision,timestamptz,integer}'),
        ('take_each', '{text[],uuid[],double precision[],double precision[],double precision[],timestamptz,integer}'),
        ('take_many', '{text[],uuid[],double precision[],double precision[],double precision[],integer[],double precision[],double precision[],double precision[],integer[],integer[],timestamptz,integer,boolean[]}'),
        ('held_buckets', '{text[],uuid[],integer}'),
        ('peek', '{text[],uuid[],timestamptz}'),
        ('refund', '{text[],uuid[],double precision[],double precision[],integer}'),
        ('delete_idle', '{bigint,timestamptz,integer}'),
        ('delete_idle_pages', '{bigint,timestamptz,bigint,integer}'),
        ('raise_retention', '{bigint,bigint}'),
        ('later', '{timestamptz,bigint}'),
        ('idempotency_look', '{bytea,timestamptz}'),
        ('idempotency_claim', '{bytea,bytea,bigint,bigint,boolean,timestamptz,integer}'),
        ('idempotency_renew', '{bytea,bigint,timestamptz,bigint,timestamptz,integer}'),
        ('idempotency_complete', '{bytea,bigint,bigint,integer,text[],bytea[],bytea,timestamptz}'),
        ('idempotency_release', '{bytea,bigint,timestamptz,integer}'),
        ('idempotency_delete_expired', '{timestamptz,integer}'),
        ('idempotency_is_free', '{bytea,timestamptz,timestamptz,bytea,boolean,timestamptz}'),
        ('admit', '{bytea[],bytea[],bigint[],bigint[],boolean[],integer[],text[],uuid[],double precision[],double precision[],double precision[],integer[],double precision[],double precision[],double precision[],integer[],integer[],timestamptz,integer,boolean[]}'),
        ('lead', '{text,text,bigint,timestamptz}')
)
SELECT string_agg(lacks, ', ') FROM (
    SELECT lacks FROM tables
    UNION ALL
    -- Without it a bucket might have two rows, and be granted twice.
    SELECT format('the %s of %s', t.key, t.name) FROM tables AS t
    WHERE t.lacks IS NULL AND NOT EXISTS (
        SELECT FROM pg_constraint AS k
        WHERE k.conrelid = t.oid AND k.contype = 'p' AND pg_get_constraintdef(k.oid) = t.key
    )
    UNION ALL
    SELECT format('the column %s %s of %s', w.name, w.type, t.name) FROM wanted_columns AS w
    JOIN tables AS t ON t.name = w.of AND t.lacks IS NULL
    WHERE NOT EXISTS (
        SELECT FROM pg_attribute AS a WHERE a.attrelid = t.oid AND a.attname = w.name AND a.atttypid = w.type
    )
    UNION ALL
    SELECT 'the sequence idempotency_fence' WHERE NOT EXISTS (
        SELECT FROM pg_class AS c JOIN here ON c.relnamespace = here.oid
        WHERE c.relname = 'idempotency_fence' AND c.relkind = 'S'
    )
    UNION ALL
    SELECT format('the function %s(%s)', w.name, array_to_string(w.arguments, ', ')) FROM wanted_functions AS w
    WHERE NOT EXISTS (
        SELECT FROM pg_proc AS p JOIN here ON p.pronamespace = here.oid
        WHERE p.proname = w.name AND oidvectortypes(p.proargtypes) = array_to_string(w.arguments, ', ')
    )
) AS every
