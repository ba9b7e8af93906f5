//! The document that holds the latest table, between two marks.

use std::path::Path;

use anyhow::{Context, Result};

const BEGIN: &str = "<!-- table: begin -->\n";
const END: &str = "<!-- table: end -->\n";

/// Replaces what stands between the marks of `text`.
fn replace(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// Puts `table` into the document at `path`.
///
/// # Errors
/// If it cannot be read or written, or has no marks.
pub(crate) fn update(path: &Path, table: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let text =
        replace(&text, table).with_context(|| format!("{} has no marks for the table", path.display()))?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let text = format!("above\n{BEGIN}old\n{END}below\n");
        let new = replace(&text, "new\n").unwrap();
        assert_eq!(new, format!("above\n{BEGIN}\nnew\n\n{END}below\n"));
        assert_eq!(replace(&new, "new\n").as_ref(), Some(&new));
        assert_eq!(replace("no marks", "new"), None);
    }
}
