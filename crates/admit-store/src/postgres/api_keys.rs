//! API keys as rows.

use std::time::SystemTime;

use admit::Unavailable;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::database::{CallError, Param, get, timestamp};
use crate::{ApiKey, MAX_API_KEYS};

const LIST: &str = include_str!("sql/list_api_keys.sql");
const ADD: &str = include_str!("sql/add_api_key.sql");
const DELETE: &str = include_str!("sql/delete_api_key.sql");

impl PostgresStore {
    pub(crate) async fn api_keys(&self) -> Result<Vec<ApiKey>, Unavailable> {
        let most = MAX_API_KEYS as i64; // A constant, far below the bound of an i64.
        let sql = LIST.replace("{schema}", self.database.schema());
        let row = self.database.row(&sql, &[(&most, Type::INT8)]).await?;
        let digests: Vec<Vec<u8>> = get::<Option<_>>(&row, 0)?.unwrap_or_default();
        let tenants: Vec<String> = get::<Option<_>>(&row, 1)?.unwrap_or_default();
        let plans: Vec<Option<String>> = get::<Option<_>>(&row, 2)?.unwrap_or_default();
        let names: Vec<Option<String>> = get::<Option<_>>(&row, 3)?.unwrap_or_default();
        let times: Vec<SystemTime> = get::<Option<_>>(&row, 4)?.unwrap_or_default();
        let rows = digests.into_iter().zip(tenants).zip(plans).zip(names).zip(times);
        rows.map(|((((digest, tenant), plan), name), time)| {
            let wrong = |_| CallError::Answer("a hash has not 32 bytes".into());
            let sha256 = <[u8; 32]>::try_from(digest).map_err(wrong)?;
            Ok(ApiKey { sha256, tenant, plan, name, created_at: timestamp(time)? })
        })
        .collect::<Result<_, CallError>>()
        .map_err(Unavailable::from)
    }

    pub(crate) async fn add_api_key(&self, key: &ApiKey) -> Result<bool, Unavailable> {
        let sql = ADD.replace("{schema}", self.database.schema());
        let params: [Param<'_>; 5] = [
            (&key.sha256.as_slice(), Type::BYTEA),
            (&key.tenant, Type::TEXT),
            (&key.plan, Type::TEXT),
            (&key.name, Type::TEXT),
            (&SystemTime::from(key.created_at), Type::TIMESTAMPTZ),
        ];
        Ok(get::<i64>(&self.database.row(&sql, &params).await?, 0)? > 0)
    }

    pub(crate) async fn delete_api_key(&self, sha256: [u8; 32]) -> Result<bool, Unavailable> {
        let sql = DELETE.replace("{schema}", self.database.schema());
        let row = self.database.row(&sql, &[(&sha256.as_slice(), Type::BYTEA)]).await?;
        Ok(get::<i64>(&row, 0)? > 0)
    }
}
