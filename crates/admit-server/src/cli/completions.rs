//! `admit completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::print;

/// Print what completes this program's commands in a shell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  admit completions bash > /etc/bash_completion.d/admit\n  \
                        admit completions fish > ~/.config/fish/completions/admit.fish")]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(super) fn run<C: CommandFactory>(self) -> miette::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut C::command(), "admit", &mut script);
        print(&String::from_utf8_lossy(&script));
        Ok(())
    }
}
