//! A bounded pool of connections, and what becomes of one whose statement nobody waits for any more.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use scopeguard::ScopeGuard;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{ConnectError, PostgresConfig, StatementError, tls};

/// How long a statement that nobody waits for any more may go on. Most end within milliseconds, and a connection costs
/// more to make than that.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// The class of codes that say that a transaction is not in a state to do this.
const INVALID_TRANSACTION_STATE: &str = "25";

/// Connections to PostgreSQL, and the bounds that hold on them. The store has its own; a service has another for its
/// tables beside the store's, to [complete a record](super::PostgresStore::complete_in) in its own transactions. Clones
/// share the connections.
///
/// ```no_run
/// use admit_store::postgres::{ConnectionError, Connections, PostgresConfig, StatementError, tokio_postgres};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error(transparent)]
/// enum Failure {
///     Connection(#[from] ConnectionError),
///     Statement(StatementError),
/// }
///
/// impl From<tokio_postgres::Error> for Failure {
///     fn from(error: tokio_postgres::Error) -> Self {
///         Self::Statement(error.into())
///     }
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let connections = Connections::new("orders", &PostgresConfig::new("postgres://localhost/app"))?;
/// let count = connections.run(async |client| {
///     let row = client.query_typed_one("SELECT count(*) FROM orders", &[]).await?;
///     Ok::<i64, Failure>(row.try_get(0)?)
/// });
/// println!("{} orders", count.await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

struct Shared {
    pool: Pool,
    tls: MakeRustlsConnect,
    acquire_timeout: Duration,
    statement_timeout: Duration,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// No connection was free in time, or none could be made.
    #[error("no connection")]
    Pool(#[source] PoolError),
    /// The server did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl Connections {
    /// Makes no connection yet. `name` is how the server's views call them, unless the URL says otherwise. Of the config
    /// it takes the URL, TLS, the number of connections, and the timeouts for acquiring one and for statements.
    ///
    /// # Errors
    /// [`ConnectError`] if the URL cannot be read, or TLS cannot be set up.
    pub fn new(name: &str, config: &PostgresConfig) -> Result<Self, ConnectError> {
        let mut postgres: tokio_postgres::Config = config.url.parse().map_err(ConnectError::Url)?;
        if postgres.get_application_name().is_none() {
            postgres.application_name(name);
        }
        postgres.connect_timeout(config.acquire_timeout);
        // A peer that is gone without a word must not hold a connection.
        postgres.tcp_user_timeout(config.statement_timeout).keepalives_idle(Duration::from_secs(30));
        let tls = tls::connector(postgres.get_ssl_mode(), config.tls.clone()).map_err(ConnectError::Tls)?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(postgres, tls.clone(), recycling))
            .max_size(config.connections.max(1))
            .wait_timeout(Some(config.acquire_timeout))
            .create_timeout(Some(config.acquire_timeout))
            .recycle_timeout(Some(config.acquire_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(ConnectError::Pool)?;
        let (acquire_timeout, statement_timeout) = (config.acquire_timeout, config.statement_timeout);
        Ok(Self(Arc::new(Shared { pool, tls, acquire_timeout, statement_timeout })))
    }

    /// Works on a connection, a statement or a whole transaction, within the statement timeout. Must be called on a Tokio
    /// runtime.
    ///
    /// Where the work is cut short, because the time is up or the caller has gone, the connection stays out of the pool
    /// until its statements are over, so that nobody waits behind them and no other connection is made in its place. One
    /// that does not answer within half a second more is closed, and its statement cancelled.
    ///
    /// # Errors
    /// Those of the work, and [`ConnectionError`] made one of them.
    pub async fn run<T, E>(&self, work: impl AsyncFnOnce(&mut Client) -> Result<T, E>) -> Result<T, E>
    where
        E: From<ConnectionError> + Error + 'static,
    {
        let mut busy = self.in_flight(self.acquire().await?);
        let done = timeout(self.0.statement_timeout, work(&mut busy)).await;
        let done = done.map_err(|_| ConnectionError::TimedOut(self.0.statement_timeout))?;
        give_back(ScopeGuard::into_inner(busy), done.as_ref().err().and_then(|error| sql_state(error)));
        done
    }

    /// A connection, for work with a time limit of its own.
    pub(super) async fn acquire(&self) -> Result<Object, ConnectionError> {
        self.0.pool.get().await.map_err(ConnectionError::Pool)
    }

    /// After this long a statement has ended, or was given up and cancelled.
    pub(super) fn longest_statement(&self) -> Duration {
        self.0.statement_timeout.saturating_add(SETTLE_LIMIT).saturating_add(self.0.acquire_timeout)
    }

    /// Settles the connection, unless it is taken out of the guard before that is dropped.
    fn in_flight(&self, connection: Object) -> ScopeGuard<Object, impl FnOnce(Object)> {
        let (tls, cancel_limit) = (self.0.tls.clone(), self.0.acquire_timeout);
        scopeguard::guard(connection, move |busy| {
            let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                drop(Object::take(busy)); // The runtime has ended, and the connection with it.
                return;
            };
            runtime.spawn(async move {
                // An empty statement is answered after the one before it.
                if !matches!(timeout(SETTLE_LIMIT, busy.batch_execute("")).await, Ok(Ok(()))) {
                    let _ = timeout(cancel_limit, busy.cancel_token().cancel_query(tls)).await; // It may be gone.
                    drop(Object::take(busy));
                }
            });
        })
    }
}

/// Gives a connection back to its pool, unless the code of the answer tells that the session is of no more use.
///
/// One whose transactions are read-only, because the server has become a standby or a setting said so when the session
/// began, stays like that: it is closed, so that the next statement is sent to whoever takes the connection then.
fn give_back(connection: Object, code: Option<&SqlState>) {
    if code.is_some_and(|code| code.code().starts_with(INVALID_TRANSACTION_STATE)) {
        drop(Object::take(connection));
    }
}

/// The server's code for what went wrong, if it was the server that said so.
pub(super) fn sql_state<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e SqlState> {
    let mut error = Some(error);
    while let Some(cause) = error {
        if let Some(statement) = cause.downcast_ref::<tokio_postgres::Error>() {
            return statement.code();
        }
        if let Some(statement) = cause.downcast_ref::<StatementError>() {
            return statement.code();
        }
        error = cause.source();
    }
    None
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("pool", &self.0.pool.status()).finish_non_exhaustive()
    }
}
