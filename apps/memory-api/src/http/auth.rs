//! Finds out who calls. Nobody else gets as far as a budget.

use admit_tower::Problem;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::context::Known;
use super::{App, respond};

/// Takes the key from `X-Api-Key`, else `apikey`, else `Authorization: Bearer`, and puts the caller into the request.
pub(super) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(caller) = presented(request.headers()).and_then(|key| app.keys.identify(key)) else {
        let problem = Problem::new(StatusCode::UNAUTHORIZED)
            .detail("send a known API key in X-Api-Key, apikey, or Authorization: Bearer")
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
    let plain = headers.get("x-api-key").or_else(|| headers.get("apikey"));
    plain.map(HeaderValue::as_bytes).or_else(|| {
        let value = headers.get(AUTHORIZATION)?.as_bytes();
        let (scheme, key) = value.split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_headers_carry_a_key() {
        let key = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            presented(&headers).map(<[u8]>::to_vec)
        };
        for (name, value) in [("x-api-key", "k"), ("apikey", "k"), ("authorization", "bearer k")] {
            assert_eq!(key(name, value), Some(b"k".to_vec()), "{name}");
        }
        assert_eq!(key("authorization", "Basic k"), None);
        assert_eq!(key("authorization", "Bearer"), None);
        assert_eq!(key("cookie", "k"), None);
    }
}
