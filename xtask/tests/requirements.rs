//! The table of requirements names tests that exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The test names and the files they link to: of each link ``[`name`](path)``.
fn links(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("[`").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once("`](")?;
        Some((name, rest.split_once(')')?.0))
    })
}

#[test]
fn every_requirement_has_tests_that_exist() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = fs::read_to_string(docs.join("requirements.md")).unwrap();

    let mut files = HashMap::new();
    for (name, path) in links(&page) {
        let source = files.entry(path).or_insert_with(|| {
            fs::read_to_string(docs.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
        });
        let found = [format!("fn {name}("), format!("fn {name}<"), format!("    {name},\n")];
        assert!(found.iter().any(|form| source.contains(form)), "{path} has no test {name}");
    }
    assert!(files.len() > 10, "the page has its links");

    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    for row in rows.filter(|row| !row.starts_with("| #")) {
        assert!(row.contains("[`"), "no test stands behind: {row}");
    }
}
