SELECT holder, fence, lease_until FROM leaderships WHERE name = ?1
