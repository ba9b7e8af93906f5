//! `admit key`.

use clap::Args;

use super::print;

#[derive(Debug, Args)]
pub(super) struct Key {
    /// A user's name, an address, a UUID: whatever the budget is kept by. A UUID is its own key; of any other text it is
    /// the first 128 bits of the SHA-256.
    text: String,
    /// Take the text as an API key: hash it even if it is a UUID.
    #[arg(long)]
    api_key: bool,
}

impl Key {
    pub(super) fn run(self) -> miette::Result<()> {
        let key = if self.api_key { admit::Key::hashed(&self.text) } else { admit::Key::of(&self.text) };
        print(&format!("{key}\n"));
        Ok(())
    }
}
