//! Jobs in SQLite.

use std::time::Duration;

use admit::idempotency::{Outcome, Terms, Ticket};
use admit::{IdempotencyError, Now, Timestamp, Unavailable};
use rusqlite::{OptionalExtension, Row, Transaction, named_params};
use uuid::Uuid;

use super::connections::{WriteError, unavailable};
use super::{SqliteStorage, moment, timestamp};
use crate::storage::search_index::{IndexRows, payload};
use crate::storage::{ClaimedJob, Finish, Job, JobStatus, MAX_FAILURES, NewJob, TRIM_BATCH, retry_after};

const INSERT_JOB: &str = include_str!("sql/insert_job.sql");
const JOB: &str = include_str!("sql/job.sql");
const CLAIM_JOBS: &str = include_str!("sql/claim_jobs.sql");
const FINISH_JOB: &str = include_str!("sql/finish_job.sql");
const FAIL_JOB: &str = include_str!("sql/fail_job.sql");
const INSERT_ITEM: &str = include_str!("sql/insert_item.sql");
const INSERT_WORDS: &str = include_str!("sql/insert_words.sql");
const COUNT_PROJECT: &str = include_str!("sql/count_project.sql");
const COUNT_SKILL: &str = include_str!("sql/count_skill.sql");
const TRIM_JOBS: &str = include_str!("sql/trim_jobs.sql");
const OPEN_JOBS: &str = include_str!("sql/open_jobs.sql");

impl SqliteStorage {
    pub(crate) async fn enqueue(
        &self,
        job: NewJob,
        ticket: &Ticket,
        outcome: &Outcome,
        terms: &Terms,
        now: Now,
    ) -> Result<(), IdempotencyError> {
        let payload = payload(&job.items).map_err(unavailable)?;
        let (store, ticket, outcome, terms) =
            (self.store.clone(), ticket.clone(), outcome.clone(), terms.clone());
        let enqueued = self.connections.write(move |transaction| {
            store.complete_in(transaction, &ticket, &outcome, &terms, now).map_err(WriteError::Record)?;
            let now = moment(now).unix_micros();
            transaction.prepare_cached(INSERT_JOB)?.execute(named_params! {
                ":id": job.id.into_bytes(),
                ":tenant": job.tenant,
                ":ingest_id": job.ingest_id,
                ":project": job.project,
                ":items": job.items.len() as i64,
                ":payload": payload,
                ":now": now,
            })?;
            Ok(())
        });
        enqueued.await.map_err(|error| match error {
            WriteError::Record(error) => error,
            error => error.into_unavailable().into(),
        })
    }

    pub(crate) async fn job(&self, tenant: &str, id: Uuid) -> Result<Option<Job>, Unavailable> {
        let tenant = tenant.to_owned();
        let read = self.connections.read(move |transaction| {
            let mut statement = transaction.prepare_cached(JOB)?;
            statement.query_row(named_params! {":id": id.into_bytes(), ":tenant": tenant}, job).optional()
        });
        read.await
    }

    pub(crate) async fn claim_jobs(
        &self,
        most: u32,
        lease: Duration,
        now: Now,
    ) -> Result<Vec<ClaimedJob>, Unavailable> {
        let claimed = self.connections.write(move |transaction| {
            let now = moment(now);
            let lease_until = now.saturating_add(lease).unix_micros();
            let mut statement = transaction.prepare_cached(CLAIM_JOBS)?;
            let parameters =
                named_params! {":now": now.unix_micros(), ":lease_until": lease_until, ":most": most};
            Ok(statement.query_map(parameters, claimed_job)?.collect::<rusqlite::Result<_>>()?)
        });
        claimed.await.map_err(WriteError::into_unavailable)
    }

    pub(crate) async fn finish_job(&self, job: &ClaimedJob, now: Now) -> Result<Finish, Unavailable> {
        let Ok(rows) = IndexRows::of(&job.payload) else { return Ok(Finish::Rejected) };
        let (id, job) = (job.id, job.clone());
        let finished = self.connections.write(move |transaction| {
            let now = moment(now);
            let parameters =
                named_params! {":id": job.id.into_bytes(), ":claim": job.claim, ":now": now.unix_micros()};
            if transaction.prepare_cached(FINISH_JOB)?.execute(parameters)? == 0 {
                return Ok(Finish::ClaimLost);
            }
            index(transaction, &job, &rows, now)?;
            Ok(Finish::Indexed(rows.items.len()))
        });
        match finished.await {
            Err(error) if error.is_about_data() => {
                tracing::error!(job = %id, ?error, "the items of a job were rejected by the store");
                Ok(Finish::Rejected)
            }
            other => other.map_err(WriteError::into_unavailable),
        }
    }

    pub(crate) async fn fail_job(&self, job: &ClaimedJob, now: Now) -> Result<(), Unavailable> {
        let job = job.clone();
        let failed = self.connections.write(move |transaction| {
            let now = moment(now);
            transaction.prepare_cached(FAIL_JOB)?.execute(named_params! {
                ":id": job.id.into_bytes(),
                ":claim": job.claim,
                ":most": MAX_FAILURES,
                ":now": now.unix_micros(),
                ":retry_at": now.saturating_add(retry_after(job.failures)).unix_micros(),
            })?;
            Ok(())
        });
        failed.await.map_err(WriteError::into_unavailable)
    }

    pub(crate) async fn trim_jobs(&self, retention: Duration, now: Now) -> Result<u64, Unavailable> {
        let before = moment(now).saturating_sub(retention).unix_micros();
        let mut trimmed = 0;
        loop {
            let batch = self.connections.write(move |transaction| {
                let mut statement = transaction.prepare_cached(TRIM_JOBS)?;
                Ok(statement.execute(named_params! {":before": before, ":most": TRIM_BATCH})?)
            });
            let batch = batch.await.map_err(WriteError::into_unavailable)?;
            trimmed += batch as u64;
            if batch < TRIM_BATCH as usize {
                return Ok(trimmed);
            }
        }
    }

    pub(crate) async fn open_jobs(&self) -> Result<u64, Unavailable> {
        self.connections
            .read(|transaction| transaction.query_row(OPEN_JOBS, [], |row| row.get::<_, i64>(0)))
            .await
            .map(i64::unsigned_abs)
    }
}

fn index(
    transaction: &Transaction<'_>,
    job: &ClaimedJob,
    rows: &IndexRows,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let (owner, now) = (super::search::owner(&job.tenant), now.unix_micros());
    let mut insert_item = transaction.prepare_cached(INSERT_ITEM)?;
    let mut insert_words = transaction.prepare_cached(INSERT_WORDS)?;
    for (position, item) in (0_i64..).zip(&rows.items) {
        insert_item.execute(named_params! {
            ":tenant": job.tenant,
            ":project": job.project,
            ":kind": item.kind,
            ":text": item.text,
            ":tags": item.tags,
            ":job_id": job.id.into_bytes(),
            ":position": position,
            ":now": now,
        })?;
        let id = transaction.last_insert_rowid();
        insert_words.execute(named_params! {":id": id, ":owner": owner, ":words": item.words})?;
    }
    transaction.prepare_cached(COUNT_PROJECT)?.execute(named_params! {
        ":tenant": job.tenant,
        ":name": job.project,
        ":items": rows.items.len() as i64,
        ":now": now,
    })?;
    let mut count_skill = transaction.prepare_cached(COUNT_SKILL)?;
    for (digest, skill) in &rows.skills {
        count_skill.execute(named_params! {
            ":tenant": job.tenant,
            ":digest": digest,
            ":text": skill.text,
            ":times": skill.times,
            ":now": now,
        })?;
    }
    Ok(())
}

fn job(row: &Row<'_>) -> rusqlite::Result<Job> {
    let status = JobStatus::from_name(&row.get::<_, String>("status")?);
    let items = row.get("items")?;
    let time = |column: &str| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(timestamp));
    Ok(Job {
        id: Uuid::from_bytes(row.get("id")?),
        ingest_id: row.get("ingest_id")?,
        project: row.get("project")?,
        status,
        items,
        items_indexed: if status == JobStatus::Done { items } else { 0 },
        failures: row.get("failures")?,
        created_at: timestamp(row.get("created_at")?),
        started_at: time("started_at")?,
        finished_at: time("finished_at")?,
    })
}

fn claimed_job(row: &Row<'_>) -> rusqlite::Result<ClaimedJob> {
    Ok(ClaimedJob {
        id: Uuid::from_bytes(row.get("id")?),
        tenant: row.get("tenant")?,
        project: row.get("project")?,
        payload: row.get("payload")?,
        claim: row.get("claims")?,
        failures: row.get("failures")?,
    })
}
