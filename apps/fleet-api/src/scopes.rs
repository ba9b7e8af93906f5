//! The closed set of budgets of this service. The table's CHECK lists the same five; both change together.

use admit::{Retention, Rules, ScopesError};

use crate::{access, observability, secrets};

/// How long an idle bucket is kept. Every budget must be full again within it.
pub const RETENTION: Retention = Retention::DEFAULT;

/// What the store is built with.
///
/// # Errors
/// None with the scopes as they are.
pub fn rules() -> Result<Rules, ScopesError> {
    let rules = Rules::new([
        secrets::persistence::SECRET_READ_NODE,
        secrets::persistence::SECRET_READ_DOMAIN,
        access::persistence::ACCESS_ISSUANCE_DOMAIN,
        observability::persistence::INGEST_NODE,
        observability::persistence::INGEST_DOMAIN,
    ])?;
    Ok(Rules { retention: RETENTION, ..rules })
}
