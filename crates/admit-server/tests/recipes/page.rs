//! The files that a page of the guide shows.

use std::path::Path;

/// The files in a page's code blocks: the name in the comment on the first line, and the text.
pub(crate) fn files(page: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let mut files: Vec<(String, String)> = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.starts_with("```")) {
            (None, true) => open = Some(String::new()),
            (Some(_), true) => files.extend(open.take().and_then(named)),
            (Some(block), false) => *block += &format!("{line}\n"),
            (None, false) => {}
        }
    }
    assert!(open.is_none(), "{page} has a block without an end");
    files
}

/// Nothing if the block is no file.
fn named(block: String) -> Option<(String, String)> {
    let comment = block.lines().next()?;
    let name = ["# ", "// ", "-- "].iter().find_map(|mark| comment.strip_prefix(mark))?;
    (name.contains('.') || name == "Caddyfile").then(|| (name.to_owned(), block.clone()))
}
