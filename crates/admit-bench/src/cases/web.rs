//! HTTP: the layer in a service, the decision API, and the gateway.

use admit_testbed::Proxy;
use anyhow::Result;
use tokio::runtime::Handle;

use crate::case::{Bar, Case, Measure, Missing, Peer, Promise, Side, Sides, Unit};
use crate::load::web::{Ask, Tells, Web, get, post};
use crate::load::wrk::Wrk;
use crate::part::Part;
use crate::servers::{Admit, Limited, Proxied, Service, Throttlecrab};

const REQUESTS: &[Measure] = &[Measure::new("requests", Unit::PerSecond)];
const REQUESTS_AND_LATENCY: &[Measure] = &[
    Measure::new("requests", Unit::PerSecond),
    Measure::new("99th percentile of latency", Unit::Milliseconds),
];

/// How many connections there are at once.
const CONNECTIONS: u32 = 64;

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, measures, sides: fn(&Handle) -> Result<Sides>| Case {
        name: name.to_owned(),
        measures,
        promise: Promise::Exact,
        quick: true,
        sides: Box::new(sides),
    };
    vec![
        case("budget layer on an axum service, 64 connections", REQUESTS, layer),
        case("decision API over HTTP, memory store, 64 connections", REQUESTS, decisions),
        case("gateway, memory store, 64 connections", REQUESTS_AND_LATENCY, gateway),
    ]
}

/// A service that says hello with our layer, without one, with ours that tells clients nothing, and with that of
/// tower_governor, which does not either.
fn layer(runtime: &Handle) -> Result<Sides> {
    let (with, without, silent) = (hello("admit")?, hello("none")?, hello("admit-silent")?);
    let governed = hello("tower-governor");
    let hello = |part: &Part, limits: bool| {
        let url = |path: &str| format!("http://127.0.0.1:{}/{path}", part.port());
        let ask = limits.then(|| get(url("shut")));
        web(url("open"), None, Tells::Rate, ask, runtime)
    };
    let ours = hello(&with, true);
    let peers = vec![
        Peer::new("without it", Some(Bar::AtLeast(0.95)), Ok(hello(&without, false))),
        Peer::new("the layer without fields", None, Ok(hello(&silent, true))),
        Peer::new("tower_governor", None, governed.as_ref().map(|part| hello(part, true)).map_err(told)),
    ];
    Ok(Sides { ours, peers, servers: Box::new((with, without, silent, governed)) })
}

fn hello(layer: &str) -> Result<Part> {
    Part::start(&["hello", layer])
}

fn decisions(runtime: &Handle) -> Result<Sides> {
    let (admit, throttlecrab) = (Admit::decisions()?, Throttlecrab::start());
    let url = format!("http://127.0.0.1:{}/v1/take", admit.port());
    let ask = post(url.clone(), r#"{"budget":"shut","key":"NAME"}"#);
    let ours = web(url, Some(r#"{"budget":"open","key":"one"}"#), Tells::Rate, Some(ask), runtime);
    let theirs = throttlecrab.as_ref().map(|server| {
        let url = format!("http://127.0.0.1:{}/throttle", server.port());
        let open = r#"{"key":"one","max_burst":1000000,"count_per_period":100000000,"period":1}"#;
        let shut = r#"{"key":"NAME","max_burst":50,"count_per_period":50,"period":3600}"#;
        web(url.clone(), Some(open), Tells::Rate, Some(post(url, shut)), runtime)
    });
    let peers = vec![Peer::new("throttlecrab", Some(Bar::AtLeast(1.2)), theirs.map_err(told))];
    Ok(Sides { ours, peers, servers: Box::new((admit, throttlecrab)) })
}

fn gateway(runtime: &Handle) -> Result<Sides> {
    Proxy::Nginx.find().map_err(|_| Missing("nginx"))?; // The service behind all of them is one too.
    let service = Service::start()?;
    let admit = Admit::gateway(service.port())?;
    let [nginx, haproxy] =
        [Limited::Nginx, Limited::HaProxy].map(|limited| Proxied::start(limited, service.port()));
    let before = |port: u16| {
        let url = |path: &str| format!("http://127.0.0.1:{port}/{path}");
        web(url("open"), None, Tells::RateAndLatency, Some(get(url("shut"))), runtime)
    };
    let peer = |name: &str, bars: [Option<Bar>; 2], proxy: &Result<Proxied>| Peer {
        name: name.to_owned(),
        bars: bars.to_vec(),
        side: proxy.as_ref().map(|proxy| before(proxy.port())).map_err(told),
    };
    let peers = vec![
        peer("nginx, limit_req", [Some(Bar::AtLeast(1.0)), Some(Bar::AtMost(1.0))], &nginx),
        peer("HAProxy, stick table", [None, None], &haproxy),
    ];
    Ok(Sides { ours: before(admit.port()), peers, servers: Box::new((admit, nginx, haproxy, service)) })
}

fn web(url: String, body: Option<&str>, tells: Tells, ask: Option<Ask>, runtime: &Handle) -> Box<dyn Side> {
    let wrk = Wrk { url, connections: CONNECTIONS, body: body.map(str::to_owned) };
    Box::new(Web { wrk, tells, ask, runtime: runtime.clone() })
}

/// Why a peer is not here, once more.
fn told(error: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}
