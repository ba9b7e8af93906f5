-- The longest retention that a store was ever opened with. Every sweep goes by it, whoever runs it: a replica with another
-- policy, older or newer, would else delete buckets that are not full under the budgets of this one.

CREATE TABLE {schema}.retention (
    one              integer NOT NULL CONSTRAINT retention_pkey PRIMARY KEY CONSTRAINT retention_one_check CHECK (one = 1),
    retention_micros bigint  NOT NULL,
    statement_micros bigint  NOT NULL,
    CONSTRAINT retention_micros_check CHECK (retention_micros >= 0 AND statement_micros >= 0)
);

COMMENT ON TABLE {schema}.retention IS 'How long idle buckets are kept: as long as any store that was opened here needs';
COMMENT ON COLUMN {schema}.retention.retention_micros IS 'The longest retention, in microseconds';
COMMENT ON COLUMN {schema}.retention.statement_micros IS 'The longest that a take may be under way, in microseconds';

-- Raises what is kept, and never lowers it. Writes nothing if there is nothing to raise.
CREATE FUNCTION {schema}.raise_retention(retention bigint, statement bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    -- Else the conflict below might be with a row that this transaction does not see.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'raise_retention needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    IF NOT EXISTS (
        SELECT FROM {schema}.retention AS r
        WHERE r.one = 1 AND r.retention_micros >= retention AND r.statement_micros >= statement
    ) THEN
        INSERT INTO {schema}.retention AS r (one, retention_micros, statement_micros)
        VALUES (1, retention, statement)
        ON CONFLICT ON CONSTRAINT retention_pkey DO UPDATE SET
            retention_micros = GREATEST(r.retention_micros, excluded.retention_micros),
            statement_micros = GREATEST(r.statement_micros, excluded.statement_micros);
    END IF;
END
$$;

-- As before, but no bucket that was idle for less than what is kept, and, by this server's clock, than a take may be
-- under way on top.
--
-- The statement that deletes reads what is kept. A store raises it, and commits, before it takes: if this statement does
-- not see that yet, all takes by the longer retention come after it began. The rows that they make are not in its sight, and
-- those that they change are looked at again once locked, refreshed just now. So it deletes none that owes by a longer one.
CREATE OR REPLACE FUNCTION {schema}.delete_idle(idle_micros bigint, at timestamptz, batch integer) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
    deleted bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'delete_idle needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    -- By physical address, which cannot change while the lock is held: no join that would read more than the batch.
    DELETE FROM {schema}.rate_budgets
    WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM {schema}.rate_budgets AS b
        WHERE b.refilled_at < decided_at - interval '1 microsecond' * GREATEST(idle_micros, (
            SELECT r.retention_micros + CASE WHEN at IS NULL THEN r.statement_micros ELSE 0 END
            FROM {schema}.retention AS r WHERE r.one = 1
        ))
        ORDER BY b.refilled_at
        LIMIT batch
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
