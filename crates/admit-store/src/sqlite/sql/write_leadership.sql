INSERT INTO leaderships (name, holder, fence, lease_until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET
    holder = excluded.holder, fence = excluded.fence, lease_until = excluded.lease_until
