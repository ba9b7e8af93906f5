//! Why the store is unavailable.

use admit::{Unavailable, UnavailableKind};

/// Every place of a bounded table is in use, as far as it was looked for one that is not.
#[derive(Debug, thiserror::Error)]
#[error("all {max} {what} are in use; none was found that could be dropped without forgetting what it holds")]
pub(super) struct Full {
    pub(super) what: &'static str,
    pub(super) max: usize,
}

pub(super) fn unavailable(cause: impl std::error::Error + Send + Sync + 'static) -> Unavailable {
    Unavailable::new("memory", cause)
}

impl From<Full> for Unavailable {
    fn from(full: Full) -> Self {
        unavailable(full).of_kind(UnavailableKind::Full)
    }
}
