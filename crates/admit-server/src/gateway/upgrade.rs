//! Connections that become something else, WebSockets for one: from then on bytes pass as they come.

use std::time::Duration;

use axum::body::Body;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::io::{InspectReader, InspectWriter};

use super::hop_by_hop::tokens;

/// An upgrade that a client asked for.
pub(super) struct Upgrade {
    protocols: HeaderValue,
    client: OnUpgrade,
}

/// The upgrade that the request asks for, if it does. To be called before its hop-by-hop headers are stripped.
pub(super) fn asked(request: &mut Request<Body>) -> Option<Upgrade> {
    let headers = request.headers();
    let asks = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    if !asks || request.version() != Version::HTTP_11 {
        return None; // HTTP/1.0 has to be answered as if it had not asked (RFC 9110, section 7.8).
    }
    let protocols: Vec<&str> = tokens(headers, &UPGRADE).filter(|protocol| !is_http(protocol)).collect();
    let protocols =
        HeaderValue::try_from(protocols.join(", ")).ok().filter(|protocols| !protocols.is_empty())?;
    Some(Upgrade { protocols, client: hyper::upgrade::on(request) })
}

/// Other forms of HTTP, and TLS, are about this connection. Behind an upgrade to one of them a client would send the
/// upstream requests that no budget sees.
fn is_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    ["h2c", "h2", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

impl Upgrade {
    /// Asks the upstream for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocols.clone());
    }

    /// Whether this answer switches to something that was asked for.
    pub(super) fn is_to(&self, answer: &HeaderMap) -> bool {
        let asked = self.protocols.to_str().unwrap_or_default();
        let was_asked = |protocol: &str| asked.split(", ").any(|asked| asked.eq_ignore_ascii_case(protocol));
        tokens(answer, &UPGRADE).next().is_some() && tokens(answer, &UPGRADE).all(was_asked)
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
