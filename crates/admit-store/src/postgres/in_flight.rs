//! Connections with statements in flight, and what becomes of them when nobody waits for the answer any more.

use std::time::Duration;

use deadpool_postgres::Object;
use scopeguard::ScopeGuard;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a statement that nobody waits for any more may go on. Most end within milliseconds, and a connection costs
/// more to make than that.
pub(super) const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// Guards a connection of a pool while statements are in flight on it, for the store's pool and for an application's own.
///
/// [`ScopeGuard::into_inner`] gives it back when the answer is there. Where the guard is dropped before, because the time
/// was up or the caller has gone, the connection stays out of the pool until its statements are over, so that nobody
/// waits behind them and no other connection is made in its place. One that does not answer within half a second is
/// closed, and its statement cancelled, which may take `cancel_limit`.
pub fn in_flight(
    connection: Object,
    tls: MakeRustlsConnect,
    cancel_limit: Duration,
) -> ScopeGuard<Object, impl FnOnce(Object)> {
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

/// Gives a connection back to its pool when the answer is there, and tells by the answer's code whether the session is of
/// any more use.
///
/// One whose transactions are read-only, because the server has become a standby or a setting said so when the session
/// began, stays like that: it is closed, so that the next statement is sent to whoever takes the connection then.
pub fn give_back(connection: Object, code: Option<&SqlState>) {
    const INVALID_TRANSACTION_STATE: &str = "25"; // The class of codes.
    if code.is_some_and(|code| code.code().starts_with(INVALID_TRANSACTION_STATE)) {
        drop(Object::take(connection));
    }
}
