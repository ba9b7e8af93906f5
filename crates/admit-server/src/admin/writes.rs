//! What changes something: for who presents an admin token, and only there where the policy has some.

use admit::Causes;
use admit_tower::{Problem, Rejection, strict_json};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::engine::named_bucket;
use crate::reload::{ReloadError, Reloaded, Running};
use crate::{bearer, body};

/// The longest call, in bytes: a name, and a key of 16 texts of 1,024 characters.
const MAX_CALL_BYTES: usize = 64 << 10;

/// The answer to who has no token; nothing to who has one.
fn refusal(running: &Running, headers: &HeaderMap) -> Option<Problem> {
    let in_force = running.in_force();
    let tokens = &in_force.policy.server.admin_tokens;
    if tokens.is_empty() {
        let detail = "nothing can be changed here, as the policy has no admin tokens: put the SHA-256 of a long random \
                      token into it, as in admin_tokens = [\"…\"] (printf %s TOKEN | sha256sum)";
        return Some(Problem::new(StatusCode::NOT_FOUND).detail(detail).with("error", "not_found"));
    }
    match bearer::token(headers).is_some_and(|token| tokens.accept(token)) {
        true => None,
        false => Some(bearer::unknown("send an admin token: Authorization: Bearer TOKEN")),
    }
}

/// `POST /reload`: reads the policy's files anew.
pub(super) async fn reload(State(running): State<Running>, headers: HeaderMap) -> Response {
    if let Some(problem) = refusal(&running, &headers) {
        return problem.into_response();
    }
    match running.reload().await {
        Ok(Reloaded::Taken) => Json(json!({"outcome": "taken"})).into_response(),
        Ok(Reloaded::Unchanged) => Json(json!({"outcome": "unchanged"})).into_response(),
        Err(error @ ReloadError::NotInForce(_)) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY)
            .detail("the policy on the disk is not taken; the one before stays in force")
            .with("error", "policy_refused")
            .with("policy", error.to_string())
            .into_response(),
        Err(error @ ReloadError::Busy) => Problem::new(StatusCode::SERVICE_UNAVAILABLE)
            .detail(error.to_string())
            .with("error", "busy")
            .into_response(),
    }
}

/// `POST /buckets/reset` with `{"scope": …, "key": …}`: the bucket is full again. The key is a text, or a list of texts, for
/// what the budget is kept by, constants left out; or the bucket's UUID.
pub(super) async fn reset(State(running): State<Running>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    // Before anything of the body: who has no token takes up no memory and no time.
    if let Some(problem) = refusal(&running, &parts.headers) {
        return problem.into_response();
    }
    let read = match body::whole(&running.bounds().read_ahead, body, MAX_CALL_BYTES).await {
        Ok(read) => read,
        Err(rejection) => return rejection.problem().into_response(),
    };
    let wrong = |detail: String| {
        let problem = Problem::new(StatusCode::BAD_REQUEST).detail(detail).with("error", "bad_request");
        problem.into_response()
    };
    let json = strict_json::parse(&read.bytes).ok();
    let member = |name: &str| json.as_ref().and_then(|json: &Value| json.get(name));
    let (Some(scope), Some(key)) = (member("scope").and_then(Value::as_str), member("key").and_then(texts))
    else {
        return wrong(
            "send a JSON object with the text scope, and with key, a text or a list of texts".to_owned(),
        );
    };
    let in_force = running.in_force();
    let Some((scope, rule)) = in_force.policy.scope(scope) else {
        return wrong(format!("there is no budget {scope:?}"));
    };
    let key = match named_bucket(rule, &key) {
        Ok(key) => key,
        Err(error) => return wrong(error.to_string()),
    };
    match in_force.store.delete_bucket(scope, key).await {
        Ok(existed) => {
            in_force.leased.forget(scope, &key);
            tracing::warn!(%scope, %key, existed, "a bucket was reset by the admin listener");
            Json(json!({"scope": scope.as_str(), "key": key.to_string(), "existed": existed})).into_response()
        }
        Err(cause) => {
            tracing::error!(error = %Causes(&cause), "a bucket was not reset");
            Rejection::Unavailable.problem().into_response()
        }
    }
}

/// A text, or a list of texts.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        value => Some(vec![value.as_str()?.to_owned()]),
    }
}
