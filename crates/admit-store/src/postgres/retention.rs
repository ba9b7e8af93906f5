//! How long idle buckets are kept: as long as any store that was ever opened on the schema needs.

use admit::{Retention, Unavailable};
use tokio_postgres::types::Type;

use super::database::{Database, micros};

/// Raises what the schema keeps, for every sweep to come, whoever runs it; never lowers it. Committed when this returns,
/// and so before the caller takes by a budget that needs it.
pub(super) async fn raise(database: &Database, retention: Retention) -> Result<(), Unavailable> {
    let sql = format!("SELECT FROM {}.raise_retention($1, $2)", database.schema());
    let statement = micros(database.connections().longest_statement());
    let params = [(&micros(retention.duration()) as _, Type::INT8), (&statement as _, Type::INT8)];
    database.row(&sql, &params).await?;
    Ok(())
}
