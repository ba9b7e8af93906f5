//! How fast the server answers at all.

use std::sync::Arc;

use admit::{Budget, Key};
use anyhow::Result;
use tokio_postgres::{Client, NoTls, Statement};

use crate::load::limiter::Limiter;

/// `SELECT 1`, prepared, on one connection that all callers share: what they ask at once is on its way at once.
#[derive(Clone)]
pub(crate) struct SelectOne(Arc<(Client, Statement)>);

impl SelectOne {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let statement = client.prepare("SELECT 1").await?;
        Ok(Self(Arc::new((client, statement))))
    }
}

impl Limiter for SelectOne {
    async fn take(&self, _: Key, _: Budget) -> Result<bool> {
        let (client, statement) = &*self.0;
        let row = client.query_one(statement, &[]).await?;
        Ok(row.get::<_, i32>(0) == 1)
    }
}
