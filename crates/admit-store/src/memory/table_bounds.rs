//! The bound of a table, tested. Not in the file of the table, which another test compiles with other locks.

use super::table::Table;

#[test]
fn the_bound_holds_and_eviction_goes_around_the_table() {
    let table = Table::<u32, u32>::new(1_000);
    for key in 0..1_000 {
        assert!(table.lock_one(&key).insert(key).is_ok());
    }
    assert!(table.lock_one(&1_000).insert(0).is_err());
    assert!(table.lock(&[7, 1_000]).reserve().is_err());
    assert!(table.lock(&[7]).reserve().is_ok(), "a key that is there needs no room");
    let mut rounds = 0;
    while table.len() == 1_000 {
        table.evict(|value| *value == 999);
        rounds += 1;
        assert!(rounds < 100, "the one spare entry is found");
    }
    assert!(table.lock_one(&1_000).insert(0).is_ok());
}
