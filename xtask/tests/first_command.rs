//! The README's first command.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

/// Of several programs in a workspace cargo runs the one that a crate names as its default, if no other crate does.
#[test]
fn cargo_run_at_the_root_is_admit() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    let metadata = String::from_utf8(metadata.stdout).unwrap();
    let defaults: Vec<&str> = metadata.split("\"default_run\":\"").skip(1).collect();
    assert!(
        matches!(defaults.as_slice(), [only] if only.starts_with("admit\"")),
        "{} have one",
        defaults.len()
    );
}
