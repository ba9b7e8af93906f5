//! What the packages bring along can be used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use admit_server::policy::{Policy, STARTER};

fn packaged(name: &str) -> String {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn the_packaged_policy_is_the_starter_policy_in_the_services_own_directory() {
    let policy = Policy::parse("packaging/admit.toml", &packaged("admit.toml")).unwrap();
    let starter = Policy::parse("starter", STARTER).unwrap();
    assert_eq!(policy.budgets, starter.budgets);
    assert_eq!((policy.server.listen, policy.server.admin), (starter.server.listen, starter.server.admin));
    let unit = packaged("admit.service");
    assert!(policy.server.store.to_string().starts_with("sqlite:/var/lib/admit/"));
    assert!(unit.contains("StateDirectory=admit\n") && unit.contains("serve /etc/admit/admit.toml\n"));
    assert!(unit.contains("ExecReload=/bin/kill -HUP $MAINPID"));
}
