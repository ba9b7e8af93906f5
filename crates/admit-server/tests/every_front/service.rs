//! The service that is protected.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use tokio::sync::Notify;

/// What it answers to an order.
pub(crate) const ORDERED: (u16, &str, &str) = (201, "text/plain; charset=utf-8", "ordered");

/// Answers, but for the key `hang`: of such an order it tells that it came, and never answers.
pub(crate) fn router(hangs: Arc<Notify>) -> Router {
    let hello = get(async || "hello");
    let router = Router::new().route("/work", hello.clone()).route("/lenient", hello.clone());
    router.route("/known", hello).route("/orders", post(order)).with_state(hangs)
}

async fn order(State(hangs): State<Arc<Notify>>, request: Request) -> Response {
    if request.headers()["idempotency-key"] == "hang" {
        hangs.notify_one();
        std::future::pending::<()>().await;
    }
    (StatusCode::CREATED, ORDERED.2).into_response()
}
