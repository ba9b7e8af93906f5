-- No index on refilled_at. Every take changes that column, so that each wrote to both indexes and left its page. Without the
-- index a changed row stays in its page where there is room, and no index is touched (a heap-only tuple). Pages that are filled
-- from now on keep room for that; the next statement that reads a full page prunes it. Where all pages are full, rows that
-- are taken from move once, and make room.
DROP INDEX IF EXISTS {schema}.rate_budgets_refilled_at_idx;
ALTER TABLE {schema}.rate_budgets SET (fillfactor = 70);

-- Deletes the buckets in `pages` pages of the table, from `first_page` on, that nobody took from for longer than
-- `idle_micros`, and than is kept, and, by this server's clock, than a take may be under way on top. Tells how many, and where to go
-- on; NULL at the end of the table. The work of a call has a bound, whatever the size of the table.
--
-- A row that is locked is in use, and passed over. A row that was refreshed after this statement began is looked at again once
-- its lock is held, and stays. No row that is idle moves to another page, unless it is given back to. A sweep that a crash undoes
-- is swept again, so that it does not wait for the disk, nor does a take that comes for one of its rows.
--
-- The statement that deletes reads what is kept. A store raises it, and commits, before it takes: if this statement does
-- not see that yet, all takes by the longer retention come after it began. The rows that they make are not in its sight, and
-- those that they change are looked at again once locked, refreshed just now. So it deletes none that owes by a longer one.
CREATE FUNCTION {schema}.delete_idle_pages(
    idle_micros bigint, at timestamptz, first_page bigint, pages integer, OUT deleted bigint, OUT next_page bigint
)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    decided_at timestamptz := COALESCE(at, clock_timestamp());
    end_page bigint := pg_relation_size('{schema}.rate_budgets'::regclass) / current_setting('block_size')::bigint;
    from_row tid;
    to_row tid;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'delete_idle_pages needs a read committed transaction' USING ERRCODE = 'AD001';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    deleted := 0;
    IF first_page + pages < end_page THEN
        next_page := first_page + pages;
        end_page := next_page;
    END IF;
    IF first_page >= end_page THEN
        RETURN;
    END IF;
    from_row := format('(%s,0)', first_page)::tid;
    to_row := format('(%s,0)', end_page)::tid;
    -- By physical address, which cannot change while the lock is held: no join that would read more than the pages.
    DELETE FROM {schema}.rate_budgets
    WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM {schema}.rate_budgets AS b
        WHERE b.ctid >= from_row AND b.ctid < to_row
          AND b.refilled_at < decided_at - interval '1 microsecond' * GREATEST(idle_micros, (
            SELECT r.retention_micros + CASE WHEN at IS NULL THEN r.statement_micros ELSE 0 END
            FROM {schema}.retention AS r WHERE r.one = 1
        ))
        FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
END
$$;

-- For replicas of the version before, which call it until it deletes fewer than `batch` rows: some pages of the table, from a
-- random one on, in one statement that must not hold up takes for long. What it does not come to is left to the next hour, or
-- to a replica of this version.
CREATE OR REPLACE FUNCTION {schema}.delete_idle(idle_micros bigint, at timestamptz, batch integer) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    end_page bigint := pg_relation_size('{schema}.rate_budgets'::regclass) / current_setting('block_size')::bigint;
    pages integer := LEAST(batch, 128);
    first_page bigint := random() * GREATEST(0, end_page - pages);
BEGIN
    RETURN (SELECT d.deleted FROM {schema}.delete_idle_pages(idle_micros, at, first_page, pages) AS d);
END
$$;
