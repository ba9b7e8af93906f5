//! Finds out who calls. Nobody else gets as far as a budget.

use admit_tower::Problem;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::context::Known;
use super::{App, respond};

/// Takes the key from `X-Api-Key`, else `apikey`, else `Authorization: Bearer`, and puts the caller into the request.
pub(super) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(caller) = presented(request.headers()).and_then(|key| app.keys.identify(key)) else {
        let problem = Problem::new(StatusCode::UNAUTHORIZED)
            .detail("send one known API key, in X-Api-Key, apikey, or Authorization: Bearer")
            .with("error", "unauthorized")
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return respond(problem);
    };
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(Known(caller));
    response
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(name) = ["x-api-key", "apikey"].into_iter().find(|name| headers.contains_key(*name)) {
        return only(headers, &HeaderName::from_static(name));
    }
    let (scheme, key) = only(headers, &AUTHORIZATION)?.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}

/// The value of a header that stands once. Of two, one may be the caller's and one what a proxy in front put there.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_headers_carry_a_key() {
        let key = |name: &'static str, value: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            presented(&headers).map(<[u8]>::to_vec)
        };
        for (name, value) in [("x-api-key", "k"), ("apikey", "k"), ("authorization", "bearer k")] {
            assert_eq!(key(name, value), Some(b"k".to_vec()), "{name}");
        }
        assert_eq!(key("authorization", "Basic k"), None);
        assert_eq!(key("authorization", "Bearer"), None);
        assert_eq!(key("cookie", "k"), None);
    }

    /// The first of two was taken, whichever of them a proxy had checked.
    #[test]
    fn two_keys_in_one_header_are_none() {
        for name in ["x-api-key", "apikey", "authorization"] {
            let mut headers = HeaderMap::new();
            for value in ["Bearer k", "Bearer l"] {
                headers.append(name, HeaderValue::from_static(value));
            }
            assert_eq!(presented(&headers), None, "{name}");
        }
    }
}
