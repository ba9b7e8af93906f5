//! `admit key`.

use clap::Args;
use serde_json::json;

use super::Output;
use crate::engine::of_text;

/// Print the UUID of a text's buckets.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  admit key ann\n  admit key --api-key adm_9f…   # as a budget by api_key has it"
)]
pub(super) struct Key {
    /// A user's name, an address, a UUID: whatever the budget is kept by. A UUID is its own key; of any other text it is
    /// the first 128 bits of the SHA-256.
    text: String,
    /// Take the text as an API key: hash it even if it is a UUID.
    #[arg(long)]
    api_key: bool,
}

impl Key {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        let key = if self.api_key { admit::Key::hashed(&self.text) } else { of_text(&self.text) };
        output.tell(&json!({"key": key.to_string()}), |_| format!("{key}\n"));
        Ok(())
    }
}
