//! Jobs in PostgreSQL.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admit::idempotency::{Outcome, Terms, Ticket};
use admit::{IdempotencyError, Now, Unavailable};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::connections::{Failure, Parameter};
use super::{PostgresStorage, micros, moment, timestamp};
use crate::storage::search_index::{IndexRows, ItemRow, payload};
use crate::storage::{ClaimedJob, Finish, Job, JobStatus, MAX_FAILURES, NewJob, TRIM_BATCH, retry_after};

const INSERT_JOB: &str = include_str!("sql/insert_job.sql");
const JOB: &str = include_str!("sql/job.sql");
const CLAIM_JOBS: &str = include_str!("sql/claim_jobs.sql");
const FINISH_JOB: &str = include_str!("sql/finish_job.sql");
const FAIL_JOB: &str = include_str!("sql/fail_job.sql");
const INSERT_ITEMS: &str = include_str!("sql/insert_items.sql");
const COUNT_PROJECT: &str = include_str!("sql/count_project.sql");
const COUNT_SKILLS: &str = include_str!("sql/count_skills.sql");
const TRIM_JOBS: &str = include_str!("sql/trim_jobs.sql");
const OPEN_JOBS: &str = include_str!("sql/open_jobs.sql");

impl PostgresStorage {
    pub(crate) async fn enqueue(
        &self,
        job: NewJob,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let payload = payload(&job.items).map_err(|error| Unavailable::new("PostgreSQL", error))?;
        // The work may be run again, so each run shares what it needs.
        let shared =
            Arc::new((self.store.clone(), job, payload, ticket.clone(), outcome.clone(), terms.clone()));
        let enqueued = self.connections.transaction(|transaction| {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                let (store, job, payload, ticket, outcome, terms) = &*shared;
                store.complete_in(transaction, ticket, outcome, terms, now).await?;
                let parameters: [Parameter<'_>; 7] = [
                    (&job.id, Type::UUID),
                    (&job.tenant, Type::TEXT),
                    (&job.ingest_id, Type::TEXT),
                    (&job.project, Type::TEXT),
                    (&(job.items.len() as i64), Type::INT8),
                    (payload, Type::TEXT),
                    (&moment(now), Type::TIMESTAMPTZ),
                ];
                transaction.execute_typed(INSERT_JOB, &parameters).await?;
                Ok(())
            })
        });
        enqueued.await.map_err(|failure| match failure {
            Failure::Record(error) => error,
            failure => Unavailable::from(failure).into(),
        })
    }

    pub(crate) async fn job(&self, tenant: &str, id: Uuid) -> Result<Option<Job>, Unavailable> {
        let rows = self.connections.query(JOB, &[(&id, Type::UUID), (&tenant, Type::TEXT)]).await?;
        Ok(rows.first().map(job).transpose()?)
    }

    pub(crate) async fn claim_jobs(
        &self,
        most: u32,
        lease: Duration,
        now: Now,
    ) -> Result<Vec<ClaimedJob>, Unavailable> {
        let parameters: [Parameter<'_>; 3] = [
            (&i64::from(most), Type::INT8),
            (&micros(lease), Type::FLOAT8),
            (&moment(now), Type::TIMESTAMPTZ),
        ];
        let rows = self.connections.query(CLAIM_JOBS, &parameters).await?;
        Ok(rows.iter().map(claimed_job).collect::<Result<_, Failure>>()?)
    }

    pub(crate) async fn finish_job(&self, job: &ClaimedJob, now: Now) -> Result<Finish, Unavailable> {
        let Ok(rows) = IndexRows::of(&job.payload) else { return Ok(Finish::Rejected) };
        let shared = Arc::new((job.clone(), rows));
        let finished = self.connections.transaction(|transaction| {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                let (job, rows) = &*shared;
                let now = moment(now);
                let parameters: [Parameter<'_>; 3] =
                    [(&job.id, Type::UUID), (&job.claim, Type::INT8), (&now, Type::TIMESTAMPTZ)];
                if transaction.execute_typed(FINISH_JOB, &parameters).await? == 0 {
                    return Ok(Finish::ClaimLost);
                }
                index(transaction, job, rows, now).await?;
                Ok(Finish::Indexed(rows.items.len()))
            })
        });
        match finished.await {
            Err(error) if error.is_about_data() => {
                tracing::error!(job = %job.id, ?error, "the items of a job were rejected by the store");
                Ok(Finish::Rejected)
            }
            other => Ok(other?),
        }
    }

    pub(crate) async fn fail_job(&self, job: &ClaimedJob, now: Now) -> Result<(), Unavailable> {
        self.connections
            .execute(
                FAIL_JOB,
                &[
                    (&job.id, Type::UUID),
                    (&job.claim, Type::INT8),
                    (&MAX_FAILURES, Type::INT4),
                    (&micros(retry_after(job.failures)), Type::FLOAT8),
                    (&moment(now), Type::TIMESTAMPTZ),
                ],
            )
            .await?;
        Ok(())
    }

    pub(crate) async fn trim_jobs(&self, retention: Duration, now: Now) -> Result<u64, Unavailable> {
        let mut trimmed = 0;
        loop {
            let parameters: [Parameter<'_>; 3] = [
                (&micros(retention), Type::FLOAT8),
                (&i64::from(TRIM_BATCH), Type::INT8),
                (&moment(now), Type::TIMESTAMPTZ),
            ];
            let batch = self.connections.execute(TRIM_JOBS, &parameters).await?;
            trimmed += batch;
            if batch < u64::from(TRIM_BATCH) {
                return Ok(trimmed);
            }
        }
    }

    pub(crate) async fn open_jobs(&self) -> Result<u64, Unavailable> {
        let rows = self.connections.query(OPEN_JOBS, &[]).await?;
        let count = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose().map_err(Failure::from)?;
        Ok(count.unwrap_or(0).unsigned_abs())
    }
}

async fn index(
    transaction: &Transaction<'_>,
    job: &ClaimedJob,
    rows: &IndexRows,
    now: Option<SystemTime>,
) -> Result<(), Failure> {
    let column = |of: fn(&ItemRow) -> &str| -> Vec<&str> { rows.items.iter().map(of).collect() };
    transaction
        .execute_typed(
            INSERT_ITEMS,
            &[
                (&job.tenant, Type::TEXT),
                (&job.project, Type::TEXT),
                (&job.id, Type::UUID),
                (&column(|item| &item.kind), Type::TEXT_ARRAY),
                (&column(|item| &item.text), Type::TEXT_ARRAY),
                (&column(|item| &item.tags), Type::TEXT_ARRAY),
                (&column(|item| &item.words), Type::TEXT_ARRAY),
                (&now, Type::TIMESTAMPTZ),
            ],
        )
        .await?;
    transaction
        .execute_typed(
            COUNT_PROJECT,
            &[
                (&job.tenant, Type::TEXT),
                (&job.project, Type::TEXT),
                (&(rows.items.len() as i64), Type::INT8),
                (&now, Type::TIMESTAMPTZ),
            ],
        )
        .await?;
    if rows.skills.is_empty() {
        return Ok(());
    }
    let digests: Vec<&[u8]> = rows.skills.keys().map(|digest| &digest[..]).collect();
    let texts: Vec<&str> = rows.skills.values().map(|skill| skill.text.as_str()).collect();
    let times: Vec<i64> = rows.skills.values().map(|skill| skill.times).collect();
    transaction
        .execute_typed(
            COUNT_SKILLS,
            &[
                (&job.tenant, Type::TEXT),
                (&digests, Type::BYTEA_ARRAY),
                (&texts, Type::TEXT_ARRAY),
                (&times, Type::INT8_ARRAY),
                (&now, Type::TIMESTAMPTZ),
            ],
        )
        .await?;
    Ok(())
}

fn job(row: &Row) -> Result<Job, Failure> {
    let status = JobStatus::from_name(row.try_get("status")?);
    let items = row.try_get("items")?;
    let time = |column: &str| row.try_get::<_, Option<SystemTime>>(column)?.map(timestamp).transpose();
    Ok(Job {
        id: row.try_get("id")?,
        ingest_id: row.try_get("ingest_id")?,
        project: row.try_get("project")?,
        status,
        items,
        items_indexed: if status == JobStatus::Done { items } else { 0 },
        failures: row.try_get("failures")?,
        created_at: timestamp(row.try_get("created_at")?)?,
        started_at: time("started_at")?,
        finished_at: time("finished_at")?,
    })
}

fn claimed_job(row: &Row) -> Result<ClaimedJob, Failure> {
    Ok(ClaimedJob {
        id: row.try_get("id")?,
        tenant: row.try_get("tenant")?,
        project: row.try_get("project")?,
        payload: row.try_get("payload")?,
        claim: row.try_get("claims")?,
        failures: row.try_get("failures")?,
    })
}
