//! Leadership by a lease in a row.

use std::time::{Duration, SystemTime};

use admit::{Now, Unavailable};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::database::{Param, get, micros, moment, timestamp};
use crate::{Leader, Leadership};

impl Leader for PostgresStore {
    async fn lead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        now: Now,
    ) -> Result<Option<Leadership>, Unavailable> {
        let sql = format!("SELECT fence, lease_until FROM {}.lead($1, $2, $3, $4)", self.database.schema());
        let params: [Param<'_>; 4] = [
            (&name, Type::TEXT),
            (&holder, Type::TEXT),
            (&micros(lease), Type::INT8),
            (&moment(now), Type::TIMESTAMPTZ),
        ];
        let row = self.database.row(&sql, &params).await?;
        let (fence, until) = (get::<Option<i64>>(&row, 0)?, get::<Option<SystemTime>>(&row, 1)?);
        let Some((fence, until)) = fence.zip(until) else { return Ok(None) };
        Ok(Some(Leadership { fence, lease_until: timestamp(until)? }))
    }
}
