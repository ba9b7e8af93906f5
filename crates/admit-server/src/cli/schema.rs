//! `admit schema`.

use clap::Args;

use super::print;
use crate::policy::SCHEMA;

/// Print the JSON schema of the policy file, for editors.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  admit schema > admit.schema.json\n\n\
                        Editors with Taplo or Even Better TOML take it from the policy's first line:\n  \
                        #:schema ./admit.schema.json")]
pub(super) struct Schema {}

impl Schema {
    pub(super) fn run(self) -> miette::Result<()> {
        print(SCHEMA);
        Ok(())
    }
}
