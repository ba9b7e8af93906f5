-- Admissions of requests that are to run once: look their keys up, take their budgets and claim their keys.

-- Whether the record of a key lets the key be claimed: its time is over; or its run let the lease lapse, and the terms let the
-- same request run again.
CREATE FUNCTION {schema}.idempotency_is_free(
    kept_fingerprint bytea, lease_until timestamptz, expires_at timestamptz,
    fingerprint bytea, stays_blocked boolean, at timestamptz
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN GREATEST(expires_at, lease_until) <= at
    OR COALESCE(lease_until <= at, false) AND kept_fingerprint = fingerprint AND NOT stays_blocked;

-- Admits many requests in one statement: one round trip, one flush for all of them.
--
-- Each request has a key of its own here, and is one of the takes of a run, as take_many has them. A request whose key is not
-- free takes no part in its run, and gets a row with the record that has the key; of a response without the headers and the
-- body, as those of a thousand replays would fill the memory. The others are granted in the order of the requests, as many of
-- each run as take_many grants. One row more, the last, tells what take_many told (NULL if no key was
-- free), and which keys were claimed with which fences.
--
-- The order of locks is always the same, so that nobody waits for one who waits for him:
--   1. records whose run has lapsed or whose time is over, without waiting: one that somebody else has locked is told as it is;
--   2. buckets, in the order of (scope, key);
--   3. new records, in the order of their keys. Another statement of this kind that makes the same record has its buckets
--      already, and one that only claims needs none.
-- A key that was lost to another between the look and the claim undoes all of it with a serialization failure. A statement that
-- holds buckets waits for a key only if its owner needs nothing more and is about to commit. Only a record that is made and then
-- locked by a longer transaction, such as that of a service which completes it, both in the instant between the last look and the
-- INSERT, is waited for until the lock timeout.
CREATE FUNCTION {schema}.admit(
    record_keys bytea[], fingerprints bytea[], lease_micros bigint[], ttl_micros bigint[], stays_blocked boolean[],
    run_of integer[],
    scopes text[], keys uuid[],
    least_costs double precision[], rates double precision[], bursts double precision[],
    line_buckets integer[], line_costs double precision[], line_rates double precision[], line_bursts double precision[],
    run_lines integer[], run_times integer[],
    at timestamptz, lock_timeout_ms integer, free_buckets boolean[]
) RETURNS TABLE (
    decided_at timestamptz, bucket_tokens double precision[], bucket_refilled_at timestamptz[], granted integer[],
    claimed_keys bytea[], fences bigint[], taken_number bigint, record {schema}.idempotency_records
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = on SET enable_nestloop = on SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    requests CONSTANT integer := cardinality(record_keys);
    free boolean[] := array_fill(true, ARRAY[requests]);
    again boolean[] := array_fill(false, ARRAY[requests]);  -- Free, with a record that is over.
    wanting integer := requests;
    left_of_run integer[] := run_times;
    bounds double precision[];
    lines integer;
    last_line integer := 0;
    chosen boolean[];
    claims integer := 0;
    places tid[];
    seen record;
    over {schema}.idempotency_records;
    fence bigint;
    setting text;
BEGIN
    -- Each statement here must see what was committed before it. The client repeats the call in such a transaction.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'admit needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    setting := set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());

    FOR seen IN
        SELECT o.n, ROW(
            r.record_key, r.fingerprint, r.fence, r.lease_until, r.expires_at, r.status,
            CASE WHEN r.body IS NOT NULL THEN ARRAY[]::text[] END,
            CASE WHEN r.body IS NOT NULL THEN ARRAY[]::bytea[] END,
            CASE WHEN r.body IS NOT NULL THEN ''::bytea END
        )::{schema}.idempotency_records AS kept
        FROM unnest(record_keys) WITH ORDINALITY AS o(key, n)
        JOIN {schema}.idempotency_records AS r ON r.record_key = o.key
    LOOP
        record := seen.kept;
        taken_number := seen.n;
        IF {schema}.idempotency_is_free(
            record.fingerprint, record.lease_until, record.expires_at,
            fingerprints[seen.n], stays_blocked[seen.n], decided_at
        ) THEN
            SELECT r.record_key, r.fingerprint, r.fence, r.lease_until, r.expires_at, r.status,
                   CASE WHEN r.body IS NOT NULL THEN ARRAY[]::text[] END,
                   CASE WHEN r.body IS NOT NULL THEN ARRAY[]::bytea[] END,
                   CASE WHEN r.body IS NOT NULL THEN ''::bytea END
            INTO over FROM {schema}.idempotency_records AS r
            WHERE r.record_key = record_keys[seen.n] FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                record := over;
                again[seen.n] := {schema}.idempotency_is_free(
                    record.fingerprint, record.lease_until, record.expires_at,
                    fingerprints[seen.n], stays_blocked[seen.n], decided_at
                );
            END IF;
        END IF;
        IF NOT again[seen.n] THEN
            free[seen.n] := false;
            wanting := wanting - 1;
            left_of_run[run_of[seen.n]] := left_of_run[run_of[seen.n]] - 1;
            RETURN NEXT;
        END IF;
    END LOOP;
    record := NULL;
    taken_number := NULL;

    IF wanting > 0 THEN
        IF wanting < requests THEN
            -- Nobody is left of some runs: they want more than any bucket has. A bucket of which nobody wants anything is not
            -- to be locked either.
            bounds := array_fill('Infinity'::double precision, ARRAY[cardinality(least_costs)]);
            FOR run IN 1..cardinality(run_times) LOOP
                lines := CASE WHEN run_lines IS NULL THEN 1 ELSE run_lines[run] END;
                FOR line IN last_line + 1..last_line + lines LOOP
                    IF left_of_run[run] = 0 THEN
                        line_costs[line] := 'Infinity';
                    ELSE
                        bounds[line_buckets[line]] := least_costs[line_buckets[line]];
                    END IF;
                END LOOP;
                last_line := last_line + lines;
            END LOOP;
            least_costs := bounds;
        END IF;
        SELECT t.decided_at, t.bucket_tokens, t.bucket_refilled_at, t.granted
        INTO decided_at, bucket_tokens, bucket_refilled_at, granted
        FROM {schema}.take_many(
            scopes, keys, least_costs, rates, bursts, line_buckets, line_costs, line_rates, line_bursts,
            run_lines, left_of_run, decided_at, lock_timeout_ms, free_buckets
        ) AS t;

        left_of_run := granted;
        chosen := array_fill(false, ARRAY[requests]);
        FOR n IN 1..requests LOOP
            IF free[n] AND left_of_run[run_of[n]] > 0 THEN
                left_of_run[run_of[n]] := left_of_run[run_of[n]] - 1;
                IF again[n] THEN
                    UPDATE {schema}.idempotency_records AS r
                    SET fingerprint = fingerprints[n], fence = nextval('{schema}.idempotency_fence'),
                        lease_until = {schema}.later(admit.decided_at, lease_micros[n]),
                        expires_at = {schema}.later(admit.decided_at, ttl_micros[n]),
                        status = NULL, header_names = NULL, header_values = NULL, body = NULL
                    WHERE r.record_key = record_keys[n]
                    RETURNING r.fence INTO fence;
                    claimed_keys := array_append(claimed_keys, record_keys[n]);
                    fences := array_append(fences, fence);
                ELSE
                    chosen[n] := true;
                    claims := claims + 1;
                END IF;
            END IF;
        END LOOP;
    END IF;

    IF claims > 0 THEN
        -- The INSERT would wait for a record that was made since the look and that a transaction has changed or deleted, if
        -- that is not at its end; and others would wait for the buckets.
        IF EXISTS (
            SELECT FROM unnest(record_keys, chosen) AS o(key, is_chosen)
            JOIN {schema}.idempotency_records AS r ON r.record_key = o.key
            WHERE o.is_chosen
        ) THEN
            RAISE EXCEPTION 'a key was claimed meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        WITH made AS (
            INSERT INTO {schema}.idempotency_records AS r (record_key, fingerprint, fence, lease_until, expires_at)
            SELECT o.key, o.fingerprint, 0,
                   {schema}.later(admit.decided_at, o.lease), {schema}.later(admit.decided_at, o.ttl)
            FROM unnest(record_keys, fingerprints, lease_micros, ttl_micros, chosen)
                AS o(key, fingerprint, lease, ttl, is_chosen)
            WHERE o.is_chosen
            ORDER BY o.key
            ON CONFLICT ON CONSTRAINT idempotency_records_pkey DO NOTHING
            RETURNING r.ctid
        )
        SELECT array_agg(m.ctid) INTO places FROM made AS m;
        IF places IS NULL OR cardinality(places) < claims THEN
            RAISE EXCEPTION 'a key was claimed meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        -- Drawn once the keys are ours: the INSERT may have waited while another claim drew a larger one, ran and released the
        -- key.
        WITH drawn AS (
            UPDATE {schema}.idempotency_records AS r SET fence = nextval('{schema}.idempotency_fence')
            WHERE r.ctid = ANY (places)
            RETURNING r.record_key, r.fence
        )
        SELECT array_cat(claimed_keys, array_agg(d.record_key)), array_cat(fences, array_agg(d.fence))
        INTO claimed_keys, fences FROM drawn AS d;
    ELSIF claimed_keys IS NULL AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
        -- Locked, and nothing granted: it has nothing to keep.
        setting := set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN NEXT;
END
$$;
