-- Idempotency: the table of records, and the functions that claim, renew, complete, release and sweep them.
-- What a record means is decided by the core (admit::idempotency::Record); here stands only what must be decided under
-- the row's lock: whether a key is free, and whether a ticket still has its say.

-- Every claim of every key gets a number of its own, larger than those before.
CREATE SEQUENCE {schema}.idempotency_fence;

CREATE TABLE {schema}.idempotency_records (
    record_key    bytea       NOT NULL CONSTRAINT idempotency_records_pkey PRIMARY KEY,
    fingerprint   bytea       NOT NULL,
    fence         bigint      NOT NULL,
    lease_until   timestamptz,
    expires_at    timestamptz NOT NULL,
    status        integer,
    header_names  text[],
    header_values bytea[],
    body          bytea,
    CONSTRAINT idempotency_records_sizes_check CHECK (octet_length(record_key) = 32 AND octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_records_state_check CHECK ((lease_until IS NULL) = (status IS NOT NULL)),
    CONSTRAINT idempotency_records_status_check CHECK (status BETWEEN 0 AND 65535),
    CONSTRAINT idempotency_records_response_check
        CHECK (num_nonnulls(header_names, header_values, body) IN (0, 3) AND (status IS NOT NULL OR body IS NULL)),
    CONSTRAINT idempotency_records_headers_check CHECK (cardinality(header_names) = cardinality(header_values)),
    -- What the stores read: the years 1970 to 9999.
    CONSTRAINT idempotency_records_times_check CHECK (
        lease_until BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND expires_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
    )
);

-- For the sweep: when the time of a record is over. GREATEST passes over NULL.
CREATE INDEX idempotency_records_over_at_idx ON {schema}.idempotency_records (GREATEST(expires_at, lease_until));

COMMENT ON TABLE {schema}.idempotency_records IS 'One row for each key that was claimed and not released';
COMMENT ON COLUMN {schema}.idempotency_records.record_key IS 'SHA-256 of tenant, method, route and the client''s key';
COMMENT ON COLUMN {schema}.idempotency_records.fingerprint IS 'SHA-256 of what was asked for';
COMMENT ON COLUMN {schema}.idempotency_records.fence IS 'The number of the last claim';
COMMENT ON COLUMN {schema}.idempotency_records.lease_until IS 'Until when the run holds the key; NULL: it was completed';
COMMENT ON COLUMN {schema}.idempotency_records.expires_at IS 'When the key is free again, unless a run holds it';
COMMENT ON COLUMN {schema}.idempotency_records.status IS 'HTTP status of the completed run';
COMMENT ON COLUMN {schema}.idempotency_records.header_names IS 'Its headers in order; header_values has their values';
COMMENT ON COLUMN {schema}.idempotency_records.body IS 'Its body; NULL with a status: it was too large to keep';

-- So many microseconds after `at`, no later than the year 9999. Whole seconds and the rest apart, as a product with an
-- interval is made of doubles, and so stays exact.
CREATE FUNCTION {schema}.later(at timestamptz, micros bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN LEAST(
    at + (micros / 1000000) * interval '1 second' + (micros % 1000000) * interval '1 microsecond',
    timestamptz '9999-12-31 23:59:59.999999+00'
);

-- The record of a key as it is, NULL if there is none, and the moment.
CREATE FUNCTION {schema}.idempotency_look(
    the_key bytea, at timestamptz, OUT decided_at timestamptz, OUT record {schema}.idempotency_records
)
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    decided_at := COALESCE(at, clock_timestamp());
    SELECT * INTO record FROM {schema}.idempotency_records AS r WHERE r.record_key = the_key;
END
$$;

-- Claims a key for one run: `claimed`, and the new record; or gives the record that has the key. Only a claim writes.
CREATE FUNCTION {schema}.idempotency_claim(
    the_key bytea, the_fingerprint bytea, lease_micros bigint, ttl_micros bigint, stays_blocked boolean,
    at timestamptz, lock_timeout_ms integer,
    OUT claimed boolean, OUT decided_at timestamptz, OUT record {schema}.idempotency_records
)
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    -- Each statement here must see what was committed before it.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency_claim needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    decided_at := COALESCE(at, clock_timestamp());
    claimed := false;
    FOR attempt IN 1..10 LOOP
        SELECT * INTO record FROM {schema}.idempotency_records AS r WHERE r.record_key = the_key;
        IF NOT FOUND THEN
            INSERT INTO {schema}.idempotency_records AS r (record_key, fingerprint, fence, lease_until, expires_at)
            VALUES (
                the_key, the_fingerprint, 0,
                {schema}.later(decided_at, lease_micros), {schema}.later(decided_at, ttl_micros)
            )
            ON CONFLICT (record_key) DO NOTHING;
            IF NOT FOUND THEN
                CONTINUE; -- Another claim was first.
            END IF;
            -- Drawn once the key is ours: the INSERT may have waited while another claim drew a larger one, ran and
            -- released the key.
            UPDATE {schema}.idempotency_records AS r SET fence = nextval('{schema}.idempotency_fence')
            WHERE r.record_key = the_key
            RETURNING * INTO record;
            claimed := true;
            RETURN;
        END IF;
        -- Free again: its time is over; or its run let the lease lapse, and the terms let the same request run again.
        IF GREATEST(record.expires_at, record.lease_until) <= decided_at
            OR (record.lease_until <= decided_at AND record.fingerprint = the_fingerprint AND NOT stays_blocked)
        THEN
            UPDATE {schema}.idempotency_records AS r
            SET fingerprint = the_fingerprint, fence = nextval('{schema}.idempotency_fence'),
                lease_until = {schema}.later(decided_at, lease_micros),
                expires_at = {schema}.later(decided_at, ttl_micros),
                status = NULL, header_names = NULL, header_values = NULL, body = NULL
            WHERE r.record_key = the_key AND r.fence = record.fence AND r.expires_at = record.expires_at
              AND r.lease_until IS NOT DISTINCT FROM record.lease_until -- As it was looked at.
            RETURNING * INTO record;
            claimed := FOUND;
            IF NOT claimed THEN
                CONTINUE;
            END IF;
        END IF;
        -- A claim that came second has locked the row and changed nothing: it need not wait for the disk.
        IF NOT claimed AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        RETURN;
    END LOOP;
    RAISE EXCEPTION 'an idempotency record changed too often' USING ERRCODE = 'serialization_failure';
END
$$;

-- Extends the lease from now, and never makes it shorter than the ticket says. NULL: the ticket has no more say.
CREATE FUNCTION {schema}.idempotency_renew(
    the_key bytea, the_fence bigint, the_lease_until timestamptz, lease_micros bigint, at timestamptz,
    lock_timeout_ms integer
) RETURNS timestamptz
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
    renewed_until timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    UPDATE {schema}.idempotency_records AS r
    SET lease_until = GREATEST({schema}.later(decided_at, lease_micros), the_lease_until)
    WHERE r.record_key = the_key AND r.fence = the_fence AND r.lease_until > decided_at
    RETURNING r.lease_until INTO renewed_until;
    RETURN renewed_until;
END
$$;

-- Records what a run came to. False: the ticket has no more say. Also called within transactions of the service, so
-- that it leaves the settings of the transaction alone.
CREATE FUNCTION {schema}.idempotency_complete(
    the_key bytea, the_fence bigint, ttl_micros bigint,
    the_status integer, the_header_names text[], the_header_values bytea[], the_body bytea, at timestamptz
) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
BEGIN
    UPDATE {schema}.idempotency_records AS r
    SET lease_until = NULL, expires_at = {schema}.later(decided_at, ttl_micros),
        status = the_status, header_names = the_header_names, header_values = the_header_values, body = the_body
    WHERE r.record_key = the_key AND r.fence = the_fence AND r.lease_until > decided_at;
    RETURN FOUND;
END
$$;

-- Frees the key. False: the ticket has no more say.
CREATE FUNCTION {schema}.idempotency_release(
    the_key bytea, the_fence bigint, at timestamptz, lock_timeout_ms integer
) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    DELETE FROM {schema}.idempotency_records AS r
    WHERE r.record_key = the_key AND r.fence = the_fence AND r.lease_until > decided_at;
    RETURN FOUND;
END
$$;

-- Deletes up to `batch` records whose time is over, and tells how many; as delete_idle does with buckets.
CREATE FUNCTION {schema}.idempotency_delete_expired(at timestamptz, batch integer) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
    deleted bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idempotency_delete_expired needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {schema}.idempotency_records
    WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM {schema}.idempotency_records AS r
        WHERE GREATEST(r.expires_at, r.lease_until) <= decided_at
        ORDER BY GREATEST(r.expires_at, r.lease_until)
        LIMIT batch
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;
