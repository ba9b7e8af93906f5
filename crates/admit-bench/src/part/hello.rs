//! A service that says hello, alone or behind a layer that holds users to a budget.

use std::sync::Arc;
use std::time::Duration;

use admit::{Budget, Key, Rules, Scope};
use admit_store::memory::MemoryStore;
use admit_tower::{BudgetLayer, Dialect, Limiter, Quota};
use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use http::Request;
use http::request::Parts;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

use super::Layer;
use crate::load::beside::ALLOWED;

const USER: &str = "x-user";

pub(super) fn run(layer: Layer) -> Result<()> {
    let hello = |path: &str| Router::new().route(path, get(async || "hello"));
    let (open, shut) = (hello("/open"), hello("/shut"));
    let app = match layer {
        Layer::None => open.merge(shut),
        Layer::Admit | Layer::AdmitSilent => {
            let dialect = if let Layer::AdmitSilent = layer { Dialect::None } else { Dialect::default() };
            let store = MemoryStore::new(Rules::new([OPEN, SHUT])?);
            let admit = |scope: Scope, budget: Budget| {
                BudgetLayer::new(Limiter::new(store.clone()).dialect(dialect), move |request: &Parts| {
                    let user = request.headers.get(USER).map_or(&b""[..], |user| user.as_bytes());
                    vec![Quota::new(
                        scope.clone(),
                        Key::hashed(user),
                        budget,
                        "so many requests for each user",
                    )]
                })
            };
            let open = open.layer(admit(OPEN, "1000000000/second".parse()?));
            open.merge(shut.layer(admit(SHUT, format!("{ALLOWED}/hour").parse()?)))
        }
        Layer::TowerGovernor => {
            let governor = |period: Duration, burst: u32| {
                let mut config = GovernorConfigBuilder::default().key_extractor(ByUser);
                let config =
                    config.period(period).burst_size(burst).finish().context("a quota of nothing")?;
                anyhow::Ok(GovernorLayer::new(Arc::new(config)))
            };
            let open = open.layer(governor(Duration::from_nanos(1), 1_000_000_000)?);
            open.merge(shut.layer(governor(Duration::from_secs(3_600), ALLOWED as u32)?))
        }
    };
    super::listen(async move |listener| Ok(axum::serve(listener, app).await?))
}

const OPEN: Scope = Scope::from_static("open");
const SHUT: Scope = Scope::from_static("shut");

/// tower_governor's key: the user.
#[derive(Clone, Debug)]
struct ByUser;

impl KeyExtractor for ByUser {
    type Key = Vec<u8>;

    fn extract<T>(&self, request: &Request<T>) -> Result<Vec<u8>, GovernorError> {
        let user = request.headers().get(USER);
        Ok(user.ok_or(GovernorError::UnableToExtractKey)?.as_bytes().to_vec())
    }
}
