//! Connections that become something else, WebSockets for one: from then on bytes pass as they come.

use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::io::{InspectReader, InspectWriter};

use super::hop_by_hop::tokens;

/// An upgrade that a client asked for.
pub(super) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
}

/// The upgrade that the request asks for, if it does. To be called before its hop-by-hop headers are stripped.
pub(super) fn asked(request: &mut Request<Body>) -> Option<Upgrade> {
    let headers = request.headers();
    let asks = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(UPGRADE).filter(|_| asks)?.clone();
    // The upgrade to HTTP/2 in the clear is about this connection, and obsolete (RFC 9113).
    if protocol.as_bytes().eq_ignore_ascii_case(b"h2c") {
        return None;
    }
    Some(Upgrade { protocol, client: hyper::upgrade::on(request) })
}

impl Upgrade {
    /// Asks the upstream for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Joins the two connections once both have switched, until one of them ends or nothing passes for `idle`. The response
    /// is what makes the client's switch.
    pub(super) fn join(self, mut response: Response<Body>, idle: Duration) -> Response<Body> {
        let upstream = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let joined = async {
                let (client, upstream) = tokio::try_join!(self.client, upstream)?;
                let (passed, passing) = watch::channel(());
                let pass = |_: &[u8]| passed.send_replace(());
                // What the client is sent or sends is all that passes.
                let mut client = InspectWriter::new(InspectReader::new(TokioIo::new(client), pass), pass);
                let mut upstream = TokioIo::new(upstream);
                tokio::select! {
                    copied = tokio::io::copy_bidirectional(&mut client, &mut upstream) => copied.map(drop)?,
                    () = nothing(passing, idle) => tracing::debug!("an upgraded connection that is not used is cut off"),
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            };
            if let Err(error) = joined.await {
                tracing::debug!(cause = %error, "an upgraded connection broke off");
            }
        });
        response
    }
}

/// Returns when nothing has passed for a time.
async fn nothing(mut passing: watch::Receiver<()>, time: Duration) {
    while let Ok(Ok(())) = timeout(time, passing.changed()).await {}
}
