-- Many takes and refunds in one statement: one round trip, one flush for all of them.

-- Seconds from `refilled_at` to `at`, none if it lies in the past: a whole number of microseconds as a double, divided by a
-- million, as in Rust. The quick way does the same division; it is exact for less than a day, where an interval has no days.
CREATE FUNCTION {schema}.elapsed(refilled_at timestamptz, at timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN at - refilled_at < interval '1 day'
    THEN GREATEST(0, date_part('epoch', at - refilled_at))
    ELSE (extract(epoch FROM at - refilled_at) * 1000000)::bigint::double precision / 1e6::double precision
END;

-- As before, by `elapsed`.
CREATE OR REPLACE FUNCTION {schema}.level(
    tokens double precision, refilled_at timestamptz, at timestamptz, rate double precision, burst double precision
) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN LEAST(burst, tokens + {schema}.elapsed(refilled_at, at) * rate);

-- Where searches have methods of planning turned off, none is left for a table of one row, and what is turned off counts as
-- a cost of ten thousand million. Above a hundred thousand the server compiles a plan before it runs it, which takes some
-- 200 ms, each time anew. So these functions have `jit = off`.

-- A take of one bucket alone: debits it, or finds that its level does not cover the cost. Gives whether it was debited, the
-- moment, and the bucket as it is then, NULL if it has no row.
--
-- The guarded UPDATE comes first: on a refusal its guard is false, so that nothing is locked, written or flushed. Only when it
-- changed nothing is it asked why: no row (it is minted and debited in one INSERT), or not enough. If another transaction
-- interferes between the statements, each of which sees what was committed before it, it starts over.
CREATE FUNCTION {schema}.take_one(
    the_scope text, the_key uuid, cost double precision, rate double precision, burst double precision,
    at timestamptz, lock_timeout_ms integer,
    OUT granted boolean, OUT decided_at timestamptz, OUT bucket_tokens double precision, OUT bucket_refilled_at timestamptz
)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    setting text;
BEGIN
    -- Each statement here must see what was committed before it. The client repeats the call in such a transaction.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'take_one needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    setting := set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());
    FOR attempt IN 1..10 LOOP
        UPDATE {schema}.rate_budgets AS b
        SET tokens = {schema}.level(b.tokens, b.refilled_at, decided_at, rate, burst) - cost,
            refilled_at = GREATEST(b.refilled_at, decided_at)
        WHERE b.scope = the_scope AND b.bucket_key = the_key
          AND {schema}.level(b.tokens, b.refilled_at, decided_at, rate, burst) >= cost
        RETURNING b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at;
        granted := FOUND;
        IF granted THEN
            RETURN;
        END IF;

        SELECT b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at
        FROM {schema}.rate_budgets AS b
        WHERE b.scope = the_scope AND b.bucket_key = the_key;
        IF FOUND THEN
            CONTINUE WHEN {schema}.level(bucket_tokens, bucket_refilled_at, decided_at, rate, burst) >= cost;
            -- Only a lost race has a transaction id, for the row it locked and did not change. It has nothing to keep, so
            -- its end need not wait for the disk, and the next in line need not wait for it.
            IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
                setting := set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN;
        END IF;

        INSERT INTO {schema}.rate_budgets AS b (scope, bucket_key, tokens, refilled_at)
        VALUES (the_scope, the_key, burst - cost, decided_at)
        ON CONFLICT ON CONSTRAINT rate_budgets_pkey DO NOTHING
        RETURNING b.tokens, b.refilled_at INTO bucket_tokens, bucket_refilled_at;
        granted := FOUND;
        IF granted THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'bucket (%, %) changed too often', the_scope, the_key USING ERRCODE = 'serialization_failure';
END
$$;

-- Debits each bucket by all that is wanted of it, if its level covers that, and leaves the others as they are. Gives the moment,
-- the numbers of those that were debited, and how they are then.
--
-- One statement finds, locks and writes the rows, which is three quarters of the work of take_many. The settings leave one plan:
-- for each bucket, in their order, its row is looked up by the key. So rows are locked in that order; and a plan that was made
-- while the table was small does not go on to read all of it (a scan of a whole index counts as an index scan, a bitmap scan
-- never is one of a whole index).
CREATE FUNCTION {schema}.take_each(
    scopes text[], keys uuid[], costs double precision[], rates double precision[], bursts double precision[],
    at timestamptz, lock_timeout_ms integer,
    OUT decided_at timestamptz, OUT debited bigint[],
    OUT bucket_tokens double precision[], OUT bucket_refilled_at timestamptz[]
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = on SET enable_nestloop = on SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    setting text;
BEGIN
    -- Each statement here must see what was committed before it. The client repeats the call in such a transaction.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'take_each needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    setting := set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());
    WITH changed AS (
        UPDATE {schema}.rate_budgets AS b
        SET tokens = {schema}.level(b.tokens, b.refilled_at, decided_at, l.rate, l.burst) - l.cost,
            refilled_at = GREATEST(b.refilled_at, decided_at)
        FROM unnest(scopes, keys, costs, rates, bursts) WITH ORDINALITY AS l(scope, key, cost, rate, burst, n)
        WHERE b.scope = l.scope AND b.bucket_key = l.key
          AND {schema}.level(b.tokens, b.refilled_at, decided_at, l.rate, l.burst) >= l.cost
        RETURNING l.n, b.tokens, b.refilled_at
    )
    SELECT array_agg(c.n), array_agg(c.tokens), array_agg(c.refilled_at)
    INTO debited, bucket_tokens, bucket_refilled_at
    FROM changed AS c;
    -- It has nothing to keep.
    IF debited IS NULL AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        setting := set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Walks a batch of runs in their order. A run is one take, or the same take of one bucket `run_times` times; it has as many
-- lines as `run_lines` says, one if that is NULL. A line with a cost below zero gives back.
--
-- The buckets are in the order of (scope, key), each once: the order of the locks. `least_costs`, `rates` and `bursts` bound
-- what the lines want of each: a bucket whose level by the highest rate and burst does not cover the least cost pays for
-- nothing, and is neither locked nor written. A take with several lines may find one bucket full and another empty, and lines of
-- different budgets on one bucket have no common bound; so where `run_lines` is told, all buckets are looked at first, and only
-- those are locked that a grant debits.
--
-- Gives the moment, each bucket as it was found (NULL for one without a row), and how many of each run were granted: the
-- first ones. From these the caller works out every answer by the law. Buckets that somebody else holds are waited for, unless
-- `free` says that they are not (NULL: all are); -1 is for a run that needs one of those.
--
-- If a bucket changes between the look and the lock, or is minted by somebody else, the call fails with a serialization
-- failure and has done nothing.
CREATE FUNCTION {schema}.take_many(
    scopes text[], keys uuid[],
    least_costs double precision[], rates double precision[], bursts double precision[],
    line_buckets integer[], line_costs double precision[], line_rates double precision[], line_bursts double precision[],
    run_lines integer[], run_times integer[],
    at timestamptz, lock_timeout_ms integer, free boolean[],
    OUT decided_at timestamptz, OUT bucket_tokens double precision[], OUT bucket_refilled_at timestamptz[],
    OUT granted integer[]
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = off SET enable_bitmapscan = on SET enable_nestloop = on
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    buckets CONSTANT integer := cardinality(scopes);
    wanted boolean[];               -- Which buckets the look found to be debited; NULL for all.
    held bigint[];                  -- The numbers of the buckets that are locked.
    is_held boolean[];              -- NULL if all are.
    places tid[];
    holds double precision[];       -- What each bucket holds, as the walk goes on; NULL for one without a row.
    elapsed double precision[];     -- Seconds since they were refilled; zero once debited here.
    touched boolean[];              -- True if debited, false if only given back.
    minted integer;
    first_line integer;
    last_line integer;
    lines integer;
    bucket integer;
    cost double precision;
    level double precision;
    levels double precision[];
    times integer;
    fits boolean;
    passed_over boolean;
    changed boolean;
    changes integer;                -- How many buckets are touched.
    written integer;
    setting text;
BEGIN
    -- Each statement here must see what was committed before it. The client repeats the call in such a transaction.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'take_many needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    setting := set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());

    FOR pass IN (CASE WHEN run_lines IS NULL THEN 2 ELSE 1 END)..2 LOOP
        held := NULL;
        is_held := NULL;
        IF pass = 2 THEN
            SELECT array_agg(f.n), array_agg(f.ctid), array_agg(f.tokens), array_agg(f.refilled_at),
                   array_agg({schema}.elapsed(f.refilled_at, decided_at))
            INTO held, places, bucket_tokens, bucket_refilled_at, elapsed
            FROM (
                SELECT l.n, b.ctid, b.tokens, b.refilled_at
                FROM unnest(scopes, keys, least_costs, rates, bursts) WITH ORDINALITY AS l(scope, key, cost, rate, burst, n)
                JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key
                WHERE (wanted IS NULL OR wanted[l.n]) AND (free IS NULL OR free[l.n])
                  AND {schema}.level(b.tokens, b.refilled_at, decided_at, l.rate, l.burst) >= l.cost
                ORDER BY l.n
                FOR UPDATE OF b
            ) AS f;
        END IF;
        IF held IS NULL OR cardinality(held) < buckets THEN
            SELECT array_agg(f.ctid), array_agg(f.tokens), array_agg(f.refilled_at),
                   array_agg({schema}.elapsed(f.refilled_at, decided_at)), array_agg(f.is_held)
            INTO places, bucket_tokens, bucket_refilled_at, elapsed, is_held
            FROM (
                SELECT b.ctid, b.tokens, b.refilled_at, h.n IS NOT NULL AS is_held
                FROM unnest(scopes, keys) WITH ORDINALITY AS l(scope, key, n)
                LEFT JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key
                LEFT JOIN unnest(held) AS h(n) ON h.n = l.n
                ORDER BY l.n
            ) AS f;
        END IF;

        holds := bucket_tokens;
        touched := array_fill(NULL::boolean, ARRAY[buckets]);
        granted := array_fill(0, ARRAY[cardinality(run_times)]);
        minted := 0;
        changes := 0;
        last_line := 0;
        FOR run IN 1..cardinality(run_times) LOOP
            lines := CASE WHEN run_lines IS NULL THEN 1 ELSE run_lines[run] END;
            first_line := last_line + 1;
            last_line := last_line + lines;
            IF line_costs[first_line] >= 0 AND lines = 1 THEN
                bucket := line_buckets[first_line];
                cost := line_costs[first_line];
                level := LEAST(line_bursts[first_line], holds[bucket] + elapsed[bucket] * line_rates[first_line]);
                CONTINUE WHEN level < cost;
                IF NOT free[bucket] THEN
                    granted[run] := -1;
                    CONTINUE;
                END IF;
                IF pass = 2 AND NOT is_held[bucket] AND places[bucket] IS NOT NULL THEN
                    RAISE EXCEPTION 'a bucket changed meanwhile' USING ERRCODE = 'serialization_failure';
                END IF;
                IF holds[bucket] IS NULL THEN
                    minted := minted + 1;
                END IF;
                times := 0;
                WHILE times < run_times[run] AND level >= cost LOOP
                    level := level - cost;
                    times := times + 1;
                END LOOP;
                granted[run] := times;
                IF touched[bucket] IS NULL THEN
                    changes := changes + 1;
                END IF;
                holds[bucket] := level;
                elapsed[bucket] := 0;
                touched[bucket] := true;
            ELSE
                -- One time. A take of several lines, or what is given back; the latter only where there is a row.
                fits := true;
                passed_over := false;
                changed := false;
                FOR line IN first_line..last_line LOOP
                    bucket := line_buckets[line];
                    IF line_costs[line] >= 0 THEN
                        level := LEAST(line_bursts[line], holds[bucket] + elapsed[bucket] * line_rates[line]);
                        fits := level >= line_costs[line];
                        EXIT WHEN NOT fits;
                        levels[line] := level;
                    END IF;
                    passed_over := passed_over OR COALESCE(NOT free[bucket], false);
                    changed := changed OR COALESCE(pass = 2 AND NOT is_held[bucket] AND places[bucket] IS NOT NULL, false);
                END LOOP;
                CONTINUE WHEN NOT fits;
                IF passed_over THEN
                    granted[run] := -1;
                    CONTINUE;
                END IF;
                IF changed THEN
                    RAISE EXCEPTION 'a bucket changed meanwhile' USING ERRCODE = 'serialization_failure';
                END IF;
                granted[run] := 1;
                FOR line IN first_line..last_line LOOP
                    bucket := line_buckets[line];
                    IF touched[bucket] IS NULL AND (line_costs[line] >= 0 OR holds[bucket] IS NOT NULL) THEN
                        changes := changes + 1;
                    END IF;
                    IF line_costs[line] >= 0 THEN
                        IF holds[bucket] IS NULL THEN
                            minted := minted + 1;
                        END IF;
                        holds[bucket] := levels[line] - line_costs[line];
                        elapsed[bucket] := 0;
                        touched[bucket] := true;
                    ELSIF holds[bucket] IS NOT NULL THEN
                        FOR time IN 1..run_times[run] LOOP
                            holds[bucket] := LEAST(line_bursts[line], holds[bucket] - line_costs[line]);
                        END LOOP;
                        touched[bucket] := COALESCE(touched[bucket], false);
                    END IF;
                END LOOP;
            END IF;
        END LOOP;

        EXIT WHEN changes = 0;
        IF pass = 1 THEN
            wanted := ARRAY(SELECT t.it IS NOT NULL FROM unnest(touched) WITH ORDINALITY AS t(it, n) ORDER BY t.n);
        END IF;
    END LOOP;

    IF changes = 0 THEN
        -- Locked, and then not enough: it has nothing to keep, so its end need not wait for the disk.
        IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
            setting := set_config('synchronous_commit', 'off', true);
        END IF;
        RETURN;
    END IF;
    UPDATE {schema}.rate_budgets AS b
    SET tokens = t.tokens,
        refilled_at = CASE WHEN t.is_debited THEN GREATEST(b.refilled_at, decided_at) ELSE b.refilled_at END
    FROM unnest(places, holds, touched) AS t(place, tokens, is_debited)
    WHERE b.ctid = t.place AND t.is_debited IS NOT NULL;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF minted > 0 THEN
        INSERT INTO {schema}.rate_budgets AS b (scope, bucket_key, tokens, refilled_at)
        SELECT t.scope, t.key, t.tokens, decided_at
        FROM unnest(scopes, keys, places, holds, touched) WITH ORDINALITY AS t(scope, key, place, tokens, is_debited, n)
        WHERE t.place IS NULL AND t.is_debited
        ORDER BY t.n
        ON CONFLICT ON CONSTRAINT rate_budgets_pkey DO NOTHING;
        GET DIAGNOSTICS minted = ROW_COUNT;
        written := written + minted;
    END IF;
    IF written <> changes THEN
        RAISE EXCEPTION 'a bucket was minted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- Which transaction holds each bucket, NULL for one that none holds. A statement that waited for a row in vain does not
-- know for which; and most rows that are locked at an instant are locked by statements, which take from them in turns. So a
-- bucket counts as held only if one transaction has it at all looks, one every 20 ms for `wait_ms`, and does not itself
-- wait at any: then the row that it waits for is the one that is held. All buckets are looked at together, so the time does
-- not grow with their number. With 0 there is one look, which tells who has what is locked at this instant.
--
-- Who holds a bucket without a row, as he is making it, cannot be seen, and is told as 0: he is waited for. As that is
-- dear, it is done only where no row is held, and until the first that is found.
--
-- It keeps no lock: each is had in a subtransaction that is undone at once.
CREATE FUNCTION {schema}.held_buckets(scopes text[], keys uuid[], wait_ms integer, OUT holders bigint[])
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = on SET enable_nestloop = on SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    free bigint[];
    waiting bigint[] := ARRAY[]::bigint[];  -- Transactions.
    number bigint;
    setting text;
BEGIN
    setting := set_config('synchronous_commit', 'off', true);
    holders := array_fill(0::bigint, ARRAY[cardinality(scopes)]); -- Not known yet.
    FOR look IN 0..wait_ms / 20 LOOP
        IF look > 0 THEN
            PERFORM pg_sleep(0.02);
        END IF;
        BEGIN
            free := ARRAY(
                SELECT l.n FROM unnest(scopes, keys) WITH ORDINALITY AS l(scope, key, n)
                JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key
                WHERE holders[l.n] IS NOT NULL
                FOR UPDATE OF b SKIP LOCKED
            );
            RAISE EXCEPTION USING ERRCODE = 'AD002'; -- Lets go of them.
        EXCEPTION
            WHEN SQLSTATE 'AD002' THEN NULL;
        END;
        FOREACH number IN ARRAY free LOOP
            holders[number] := NULL;
        END LOOP;
        IF wait_ms > 0 THEN
            waiting := ARRAY(
                SELECT h.transactionid::text::bigint FROM pg_locks AS w
                JOIN pg_locks AS h ON h.pid = w.pid AND h.locktype = 'transactionid' AND h.granted
                WHERE NOT w.granted AND h.mode = 'ExclusiveLock'
            );
        END IF;
        SELECT array_agg(
            CASE WHEN holders[l.n] IN (0, h.holder) AND h.holder <> ALL (waiting) THEN h.holder END ORDER BY l.n
        ) INTO holders
        FROM unnest(scopes, keys) WITH ORDINALITY AS l(scope, key, n)
        LEFT JOIN LATERAL (
            SELECT NULLIF(b.xmax::text::bigint, 0) AS holder FROM {schema}.rate_budgets AS b
            WHERE b.scope = l.scope AND b.bucket_key = l.key AND holders[l.n] IS NOT NULL
        ) AS h ON true;
        EXIT WHEN cardinality(array_remove(holders, NULL)) = 0;
    END LOOP;

    IF wait_ms > 0 AND cardinality(array_remove(holders, NULL)) > 0 THEN
        RETURN;
    END IF;
    FOREACH number IN ARRAY ARRAY(
        SELECT l.n FROM unnest(scopes, keys) WITH ORDINALITY AS l(scope, key, n)
        LEFT JOIN {schema}.rate_budgets AS b ON b.scope = l.scope AND b.bucket_key = l.key
        WHERE b.scope IS NULL
    ) LOOP
        BEGIN
            setting := set_config('lock_timeout', GREATEST(1, wait_ms)::text, true);
            INSERT INTO {schema}.rate_budgets (scope, bucket_key, tokens, refilled_at)
            VALUES (scopes[number], keys[number], 0, clock_timestamp())
            ON CONFLICT ON CONSTRAINT rate_budgets_pkey DO NOTHING;
            RAISE EXCEPTION USING ERRCODE = 'AD002'; -- Makes none.
        EXCEPTION
            WHEN lock_not_available THEN
                holders[number] := 0;
                EXIT WHEN wait_ms > 0;
            WHEN OTHERS THEN NULL; -- AD002, or what the statement that needs it will be told.
        END;
    END LOOP;
END
$$;
