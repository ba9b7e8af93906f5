//! Whether the tables and functions are those that the migrations made. The history may say so where somebody has dropped
//! or changed one since, or restored a part of a backup; then each call would fail, long after the start.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

const LACKS: &str = include_str!("sql/shape.sql");

/// What is missing or another, for the operator; nothing if all is as it should be.
pub(super) async fn lacks(client: &Client, schema: &str) -> Result<Option<String>, tokio_postgres::Error> {
    client.query_typed_one(LACKS, &[(&schema, Type::TEXT)]).await?.try_get(0)
}
