//! What is kept of a response, and the response that it makes again.

use admit::idempotency::{Outcome, Response as Stored};
use bytes::Bytes;
use http::header::{
    CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION,
};
use http::response::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};

/// Tells a client that the response is that of an earlier request.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The headers that are kept. What describes one exchange and not the result (`Set-Cookie`, `Date`, the client's
/// standing) is not. `Content-Encoding` is: without it the bytes could not be read.
const KEPT: [HeaderName; 8] =
    [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, LOCATION, ETAG, LAST_MODIFIED, LINK];

/// Whether a response with this status ends the matter. After the others a retry is meant to run: the server failed,
/// the caller was not let in, or was too early.
pub(crate) fn is_final(status: StatusCode) -> bool {
    !(status.is_informational()
        || status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
        ))
}

/// The record of a response, of which a body longer than `max` bytes and the headers that describe one exchange are not
/// kept; nothing if a retry is meant to run: after 5xx, 429, 408, 401 and 403.
///
/// For a front that is told what a run came to. A handler in this process has [`Run::answer`](crate::Run::answer).
pub fn record_of(response: &Parts, body: &Bytes, max: usize) -> Option<Outcome> {
    is_final(response.status).then(|| outcome(response, body, max))
}

/// What is kept of a response whose body is no longer than `max` bytes; of a longer one, that it was given.
pub(crate) fn outcome(parts: &Parts, body: &Bytes, max: usize) -> Outcome {
    if body.len() > max {
        return Outcome::Tombstone { status: parts.status.as_u16() };
    }
    let headers = KEPT.iter().flat_map(|name| {
        let values = parts.headers.get_all(name).iter();
        values.map(move |value| (name.as_str().to_owned(), value.as_bytes().to_vec()))
    });
    Outcome::Response(Stored {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: body.to_vec(),
    })
}

/// The response again; nothing if the record holds what is not HTTP.
pub(crate) fn replay<B: From<Bytes>>(stored: Stored) -> Option<Response<B>> {
    let mut response = Response::new(B::from(Bytes::from(stored.body)));
    *response.status_mut() = StatusCode::from_u16(stored.status).ok()?;
    for (name, value) in stored.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        response.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
    }
    response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_has_the_kept_headers_and_the_same_bytes() {
        let response = Response::builder()
            .status(202)
            .header("location", "/jobs/1")
            .header("set-cookie", "session=secret")
            .header("link", "<a>; rel=next")
            .header("link", "<b>; rel=prev")
            .body(())
            .unwrap();
        let (parts, ()) = response.into_parts();
        let body = Bytes::from_static(b"\xff\x00{}");
        let Outcome::Response(stored) = outcome(&parts, &body, 4) else { panic!() };
        let again: Response<Bytes> = replay(stored).unwrap();
        assert_eq!((again.status(), again.body()), (StatusCode::ACCEPTED, &body));
        assert_eq!(again.headers()["location"], "/jobs/1");
        assert_eq!(again.headers().get_all("link").iter().count(), 2);
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert!(!again.headers().contains_key("set-cookie"));
        assert_eq!(outcome(&parts, &body, 3), Outcome::Tombstone { status: 202 });
    }

    #[test]
    fn failures_and_refusals_are_not_kept() {
        for status in [101, 401, 403, 408, 429, 500, 503] {
            assert!(!is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [200, 201, 204, 303, 400, 404, 409, 422] {
            assert!(is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
