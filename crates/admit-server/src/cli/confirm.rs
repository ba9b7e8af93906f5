//! Asks before something is done that cannot be undone.

use std::io::{IsTerminal, Write};

use miette::{IntoDiagnostic, bail, miette};

/// Goes on if a person says yes, or said so on the command line.
pub(super) fn confirm(question: &str, yes: bool) -> miette::Result<()> {
    if yes {
        return Ok(());
    }
    let mut stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(miette!(help = "add --yes", "{question} There is no terminal on which to ask"));
    }
    let mut asked = std::io::stderr();
    write!(asked, "{question} [y/N] ").and_then(|()| asked.flush()).into_diagnostic()?;
    let mut answer = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&mut stdin), &mut answer).into_diagnostic()?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}
