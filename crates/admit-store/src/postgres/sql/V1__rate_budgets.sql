-- Rate budgets: the table of buckets, and the functions that a take, a look, a refund and the sweep call.
--
-- The constraint that closes the set of scopes is not made here: it grows with the set that the stores are built with
-- (see scope_check.rs), in the transaction of this migration.
--
-- Plans are kept for a session. One that was made while the table held a few rows would read all of it, and go on to
-- when it holds many; so the functions that search tables plan without sequential scans.

CREATE TABLE {schema}.rate_budgets (
    scope       text             NOT NULL,
    bucket_key  uuid             NOT NULL,
    tokens      double precision NOT NULL,
    refilled_at timestamptz      NOT NULL,
    CONSTRAINT rate_budgets_pkey PRIMARY KEY (scope, bucket_key),
    -- NaN is above every number here, infinity too.
    CONSTRAINT rate_budgets_tokens_check CHECK (tokens >= 0 AND tokens < 'Infinity'),
    -- What the stores read: the years 1970 to 9999.
    CONSTRAINT rate_budgets_refilled_at_check
        CHECK (refilled_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
) WITH (
    -- A busy bucket leaves a dead row with every take; the default waits for a fifth of the table.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000
);

-- For the sweep, which deletes what nobody took from for long.
CREATE INDEX rate_budgets_refilled_at_idx ON {schema}.rate_budgets (refilled_at);

COMMENT ON TABLE {schema}.rate_budgets IS
    'One row for each bucket in use; a bucket without a row is full. Rates and ceilings are not stored: they come with every take.';
COMMENT ON COLUMN {schema}.rate_budgets.scope IS 'Which budget of the deployment';
COMMENT ON COLUMN {schema}.rate_budgets.bucket_key IS 'Whose bucket: a UUID, or the first 128 bits of the SHA-256 of another identifier';
COMMENT ON COLUMN {schema}.rate_budgets.tokens IS 'What was left at refilled_at';
COMMENT ON COLUMN {schema}.rate_budgets.refilled_at IS 'When tokens was last brought up to date';

-- The bucket law: the tokens there are at `at`. The same operations on doubles in the same order as in Rust:
-- elapsed microseconds as a double, divided by a million, times the rate, added, cut at the burst. The difference of two
-- timestamps is an exact interval, and its epoch an exact numeric. LEAST passes over NULL, so that a bucket without a
-- row is a full one. One expression, so that the planner puts it in place of the call.
CREATE FUNCTION {schema}.level(
    tokens double precision, refilled_at timestamptz, at timestamptz, rate double precision, burst double precision
) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN LEAST(
    burst,
    tokens + GREATEST(0, extract(epoch FROM at - refilled_at) * 1000000)::bigint::double precision
        / 1e6::double precision * rate
);

-- Debits one bucket, or finds that its level does not cover the cost. Gives the bucket as it is then.
--
-- The guarded UPDATE comes first: on a refusal its guard is false, so that nothing is locked, written or flushed. Only
-- when it changed nothing is it asked why: no row (it is minted and debited in one INSERT), or not enough. If another
-- transaction interferes between the statements, each of which sees what was committed before it, it starts over.
CREATE FUNCTION {schema}.debit(
    the_scope text, the_key uuid, cost double precision, rate double precision, burst double precision, at timestamptz,
    OUT granted boolean, OUT bucket_tokens double precision, OUT bucket_refilled_at timestamptz
)
LANGUAGE plpgsql
AS $$
BEGIN
    FOR attempt IN 1..10 LOOP
        UPDATE {schema}.rate_budgets AS b
        SET tokens = {schema}.level(b.tokens, b.refilled_at, at, rate, burst) - cost,
            refilled_at = GREATEST(b.refilled_at, at)
        WHERE b.scope = the_scope AND b.bucket_key = the_key
          AND {schema}.level(b.tokens, b.refilled_at, at, rate, burst) >= cost
        RETURNING b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at;
        granted := FOUND;
        IF granted THEN
            RETURN;
        END IF;

        SELECT b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at
        FROM {schema}.rate_budgets AS b
        WHERE b.scope = the_scope AND b.bucket_key = the_key;
        IF FOUND THEN
            IF {schema}.level(bucket_tokens, bucket_refilled_at, at, rate, burst) < cost THEN
                RETURN;
            END IF;
            CONTINUE; -- Somebody minted it, or gave back.
        END IF;

        INSERT INTO {schema}.rate_budgets AS b (scope, bucket_key, tokens, refilled_at)
        VALUES (the_scope, the_key, burst - cost, at)
        ON CONFLICT (scope, bucket_key) DO NOTHING
        RETURNING b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at;
        granted := FOUND;
        IF granted THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'bucket (%, %) changed too often', the_scope, the_key USING ERRCODE = 'serialization_failure';
END
$$;

-- Debits all lines, or none. The lines are in the order of (scope, key), each bucket once: the order of the locks.
-- `at` NULL is this server's clock, read once. Bounds the waits for locks, for this transaction.
--
-- Gives whether all were debited, the moment, and each bucket: after the debit if granted, else as it was found, with
-- NULL for one without a row. If the clock decides, no moment of a grant lies before one that its buckets were already
-- debited at: then the law also holds between the moments that are told.
CREATE FUNCTION {schema}.take(
    scopes text[], keys uuid[], costs double precision[], rates double precision[], bursts double precision[],
    at timestamptz, lock_timeout_ms integer,
    OUT granted boolean, OUT decided_at timestamptz,
    OUT bucket_tokens double precision[], OUT bucket_refilled_at timestamptz[]
)
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    line record;
    fits boolean;
    one_tokens double precision;
    one_refilled_at timestamptz;
BEGIN
    -- Each statement here must see what was committed before it. The client repeats the call in such a transaction.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'take needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());

    IF cardinality(scopes) = 1 THEN
        SELECT d.granted, d.bucket_tokens, d.bucket_refilled_at INTO granted, one_tokens, one_refilled_at
        FROM {schema}.debit(scopes[1], keys[1], costs[1], rates[1], bursts[1], decided_at) AS d;
        bucket_tokens := ARRAY[one_tokens];
        bucket_refilled_at := ARRAY[one_refilled_at];
    ELSE
        FOR attempt IN 1..10 LOOP
            -- Look, without locks: most refusals end here.
            SELECT array_agg(b.tokens ORDER BY l.n), array_agg(b.refilled_at ORDER BY l.n),
                   bool_and({schema}.level(b.tokens, b.refilled_at, decided_at, l.rate, l.burst) >= l.cost)
            INTO bucket_tokens, bucket_refilled_at, fits
            FROM unnest(scopes, keys, costs, rates, bursts) WITH ORDINALITY AS l(scope, key, cost, rate, burst, n)
            LEFT JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key;
            granted := false;
            EXIT WHEN NOT fits;

            BEGIN
                FOR i IN 1..cardinality(scopes) LOOP
                    SELECT * INTO line
                    FROM {schema}.debit(scopes[i], keys[i], costs[i], rates[i], bursts[i], decided_at);
                    IF NOT line.granted THEN
                        RAISE EXCEPTION 'lost a race' USING ERRCODE = 'AD002'; -- Undoes the lines before this one.
                    END IF;
                    bucket_tokens[i] := line.bucket_tokens;
                    bucket_refilled_at[i] := line.bucket_refilled_at;
                END LOOP;
                granted := true;
                EXIT;
            EXCEPTION WHEN SQLSTATE 'AD002' THEN
                NULL; -- Look again.
            END;
        END LOOP;
        IF fits AND NOT granted THEN
            RAISE EXCEPTION 'the buckets changed too often' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    IF NOT granted THEN
        -- Only a lost race has a transaction id, for the row it locked and did not change. It has nothing to keep, so
        -- its end need not wait for the disk, and the next in line need not wait for it.
        IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    ELSIF at IS NULL THEN
        SELECT max(r) INTO decided_at FROM unnest(bucket_refilled_at || decided_at) AS r;
    END IF;
END
$$;

-- The buckets of the lines as they are, NULL for one without a row, and the moment.
CREATE FUNCTION {schema}.peek(
    scopes text[], keys uuid[], at timestamptz,
    OUT decided_at timestamptz, OUT bucket_tokens double precision[], OUT bucket_refilled_at timestamptz[]
)
LANGUAGE sql VOLATILE SET enable_seqscan = off
BEGIN ATOMIC
    SELECT COALESCE(at, clock_timestamp()), array_agg(b.tokens ORDER BY l.n), array_agg(b.refilled_at ORDER BY l.n)
    FROM unnest(scopes, keys) WITH ORDINALITY AS l(scope, key, n)
    LEFT JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key;
END;

-- Gives back, each bucket up to its burst, in the order of the lines, which is that of the locks. A bucket without a
-- row is full already.
CREATE FUNCTION {schema}.refund(
    scopes text[], keys uuid[], costs double precision[], bursts double precision[], lock_timeout_ms integer
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'refund needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    FOR i IN 1..cardinality(scopes) LOOP
        UPDATE {schema}.rate_budgets AS b SET tokens = LEAST(bursts[i], b.tokens + costs[i])
        WHERE b.scope = scopes[i] AND b.bucket_key = keys[i];
    END LOOP;
END
$$;

-- Deletes up to `batch` buckets that nobody took from for longer than `idle_micros`, and tells how many. A row that is
-- locked is in use, and passed over. A row that was refreshed after this statement began is looked at again once its
-- lock is held, and stays. A sweep that a crash undoes is swept again, so that it does not wait for the disk, nor does
-- a take that comes for a row of the batch.
CREATE FUNCTION {schema}.delete_idle(idle_micros bigint, at timestamptz, batch integer) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    cutoff timestamptz := COALESCE(at, clock_timestamp()) - idle_micros * interval '1 microsecond';
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
        WHERE b.refilled_at < cutoff
        ORDER BY b.refilled_at
        LIMIT batch
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
