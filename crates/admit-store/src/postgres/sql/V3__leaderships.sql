-- Leadership: one replica at a time does the maintenance. A lease in a row, as an advisory lock of a session would not
-- survive a pooler.

CREATE TABLE {schema}.leaderships (
    name        text        NOT NULL CONSTRAINT leaderships_pkey PRIMARY KEY,
    holder      text        NOT NULL,
    fence       bigint      NOT NULL,
    lease_until timestamptz NOT NULL,
    CONSTRAINT leaderships_lease_until_check
        CHECK (lease_until BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
);

COMMENT ON TABLE {schema}.leaderships IS 'Who does which maintenance, until when';
COMMENT ON COLUMN {schema}.leaderships.fence IS 'Grows with each change of hands';

-- Takes or keeps a leadership; NULL if another holder has it. A lease never gets shorter.
CREATE FUNCTION {schema}.lead(
    the_name text, the_holder text, lease_micros bigint, at timestamptz,
    OUT fence bigint, OUT lease_until timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
    until timestamptz := {schema}.later(decided_at, lease_micros);
BEGIN
    INSERT INTO {schema}.leaderships AS l (name, holder, fence, lease_until)
    VALUES (the_name, the_holder, 1, until)
    ON CONFLICT ON CONSTRAINT leaderships_pkey DO UPDATE SET
        holder = the_holder,
        fence = CASE WHEN l.lease_until <= decided_at THEN l.fence + 1 ELSE l.fence END,
        lease_until = CASE WHEN l.lease_until <= decided_at THEN until ELSE GREATEST(l.lease_until, until) END
    WHERE l.lease_until <= decided_at OR l.holder = the_holder
    RETURNING l.fence, l.lease_until INTO fence, lease_until;
END
$$;
