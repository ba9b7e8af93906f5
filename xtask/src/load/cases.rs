//! What is put under load, and how.

/// A front, how it is asked, and what it is to answer.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) front: Front,
    pub(super) store: Store,
    pub(super) tool: Tool,
    pub(super) path: &'static str,
    /// The body of a POST; nothing for a GET.
    pub(super) body: Option<&'static str>,
    pub(super) expects: Expects,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Front {
    /// The program before a service.
    Gateway,
    /// The program alone.
    Decisions,
    /// Envoy before a service; it asks the program by its rate limit protocol.
    Envoy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Sqlite,
    Postgres,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// HTTP/1.1.
    Wrk,
    /// HTTP/1.1, with a header `x-user` of 100,000 different values.
    WrkManyUsers,
    /// HTTP/2 in the clear, four requests at once on each connection.
    H2load,
    /// HTTP/1.1 at a steady rate, over 10,000 paths: as fast as can be, the time would be that of the queue.
    Steady,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expects {
    /// 2xx, always.
    Allowed,
    /// Nothing but refusals.
    Refused,
    /// 2xx for 99 of 100: Envoy waits 20 ms for a decision, and what came later counts as an error here.
    AllowedInTime,
}

const TAKE: &str = r#"{"charges":[{"budget":"open","key":"one"}]}"#;

#[rustfmt::skip]
pub(super) const CASES: [Case; 12] = [
    case("gateway", Front::Gateway, Store::Memory, Tool::Wrk, "/open"),
    case("gateway, 100,000 keys", Front::Gateway, Store::Memory, Tool::WrkManyUsers, "/open"),
    case("gateway, HTTP/2", Front::Gateway, Store::Memory, Tool::H2load, "/open"),
    Case { expects: Expects::Refused, ..case("gateway, refusals", Front::Gateway, Store::Memory, Tool::Wrk, "/shut") },
    case("gateway, SQLite", Front::Gateway, Store::Sqlite, Tool::Wrk, "/open"),
    case("gateway, PostgreSQL", Front::Gateway, Store::Postgres, Tool::Wrk, "/open"),
    case("/authorize", Front::Decisions, Store::Memory, Tool::Wrk, "/authorize/open"),
    case("/authorize, HTTP/2", Front::Decisions, Store::Memory, Tool::H2load, "/authorize/open"),
    Case { body: Some(TAKE), ..case("/v1/take", Front::Decisions, Store::Memory, Tool::Wrk, "/v1/take") },
    Case { body: Some(TAKE), ..case("/v1/take, HTTP/2", Front::Decisions, Store::Memory, Tool::H2load, "/v1/take") },
    Case { expects: Expects::AllowedInTime, ..case("Envoy, SQLite", Front::Envoy, Store::Sqlite, Tool::Steady, "/") },
    Case { expects: Expects::AllowedInTime, ..case("Envoy, PostgreSQL", Front::Envoy, Store::Postgres, Tool::Steady, "/") },
];

const fn case(name: &'static str, front: Front, store: Store, tool: Tool, path: &'static str) -> Case {
    Case { name, front, store, tool, path, body: None, expects: Expects::Allowed }
}
