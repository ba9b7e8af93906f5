//! API keys as rows.

use admit::Unavailable;
use rusqlite::params;

use super::SqliteStore;
use super::records::timestamp;
use crate::{ApiKey, MAX_API_KEYS};

const LIST: &str = include_str!("sql/list_api_keys.sql");
const ADD: &str = include_str!("sql/add_api_key.sql");
const DELETE: &str = include_str!("sql/delete_api_key.sql");

impl SqliteStore {
    pub(crate) async fn api_keys(&self) -> Result<Vec<ApiKey>, Unavailable> {
        let list = |connection: &rusqlite::Connection| {
            let mut statement = connection.prepare_cached(LIST)?;
            let mut rows = statement.query([MAX_API_KEYS as i64])?; // A constant, far below the bound of an i64.
            let mut keys = Vec::new();
            while let Some(row) = rows.next()? {
                keys.push(ApiKey {
                    sha256: row.get(0)?,
                    tenant: row.get(1)?,
                    plan: row.get(2)?,
                    name: row.get(3)?,
                    created_at: timestamp(row.get(4)?)?,
                });
            }
            Ok(keys)
        };
        self.writer.run(list).await
    }

    pub(crate) async fn add_api_key(&self, key: &ApiKey) -> Result<bool, Unavailable> {
        let key = key.clone();
        let add = move |connection: &rusqlite::Connection| {
            let created_at = key.created_at.unix_micros();
            let row = params![key.sha256, key.tenant, key.plan, key.name, created_at];
            Ok(connection.prepare_cached(ADD)?.execute(row)? > 0)
        };
        self.writer.run(add).await
    }

    pub(crate) async fn delete_api_key(&self, sha256: [u8; 32]) -> Result<bool, Unavailable> {
        self.writer
            .run(move |connection| Ok(connection.prepare_cached(DELETE)?.execute(params![sha256])? > 0))
            .await
    }
}
