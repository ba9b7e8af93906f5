//! How text for people looks: colours where a terminal shows them, tables, nothing of it in a pipe.

use std::io::IsTerminal;

/// Whether to colour. The default does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    coloured: bool,
}

impl Style {
    /// Colours, if standard output is a terminal and `NO_COLOR` is not set (<https://no-color.org>).
    pub(super) fn of_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { coloured: wanted && std::io::stdout().is_terminal() }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Columns as wide as their widest cell, under their names, or that there is nothing. The cells hold no colours.
    pub(super) fn table<const N: usize>(self, names: [&str; N], rows: &[[String; N]]) -> String {
        let width = |i: usize| {
            let cells = rows.iter().map(|row| row[i].chars().count());
            cells.chain([names[i].chars().count()]).max().unwrap_or_default()
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let line = |cells: [&str; N]| {
            let padded: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        if rows.is_empty() {
            return self.dim("There are none.") + "\n";
        }
        let mut text = self.bold(&line(names)) + "\n";
        for row in rows {
            text += &line(row.each_ref().map(String::as_str));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "long one".to_owned()], ["éé".to_owned(), String::new()]];
        assert_eq!(Style::default().table(["x", "y"], &rows), "x   y\na   long one\néé\n");
        assert_eq!(Style { coloured: true }.bad("no"), "\x1b[31mno\x1b[0m");
    }
}
