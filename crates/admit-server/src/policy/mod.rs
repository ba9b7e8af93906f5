//! The policy: which budgets there are, and which requests are held to them.
//!
//! It is a TOML file, small on purpose. What is wrong with one is told all at once, each thing with its place and what
//! was meant; a policy that was parsed can be used.
//!
//! ```
//! use admit_server::policy::Policy;
//!
//! let policy = Policy::parse("admit.toml", r#"
//!     upstream = "http://localhost:3000"
//!
//!     [budgets.requests]
//!     rate = "100/hour"
//!     by = "header:x-user"
//!
//!     [[routes]]
//!     match = "POST /v1/jobs"
//!     budgets = ["requests"]
//! "#)?;
//! assert_eq!(policy.budgets[0].budget.burst().tokens(), 100.0);
//!
//! let errors = Policy::parse("admit.toml", "up_stream = 1").unwrap_err();
//! assert_eq!(errors.problems()[0].help(), Some("did you mean \"upstream\"?"));
//! # Ok::<(), admit_server::policy::PolicyErrors>(())
//! ```

mod budget;
mod budgets;
mod decisions;
mod descriptor;
mod digest;
mod idempotency;
mod keys;
mod problems;
mod route;
mod routes;
mod section;
mod server;
mod shown;
mod sources;
mod tls;
mod tokens;
mod upstream;

use admit::{Budget, MAX_CHARGES, Retention, Rules, Scope, Scopes};
use admit_store::leases::Leases;

pub use budget::{BudgetRule, Mode, WhenUnavailable};
pub use decisions::{Decisions, Prefix, PrefixError};
pub use descriptor::{Descriptor, EntryValue};
pub use idempotency::IdempotencyRule;
pub use keys::{Identity, KeyEntry, Keys};
pub use problems::{PolicyErrors, PolicyProblem};
pub use route::{Pattern, PatternError, Route};
pub use routes::{Routes, TwoRoutes};
pub use server::{KeysFrom, Server, StoreUrl, StoreUrlError};
pub use sources::{Carrier, CostSource, KeyPart, KeySource, SourceError};
pub use tokens::Tokens;
pub use upstream::{Upstream, UpstreamError, UpstreamLimits, Upstreams};

use budgets::Budgets;
use problems::Problems;
use section::{Section, document, list};
use shown::Hides;

/// The largest policy file, in bytes.
pub const MAX_POLICY_BYTES: usize = 1 << 20;

/// The policy that is in force where no file is given.
pub const STARTER: &str = include_str!("starter.toml");

/// The JSON schema (draft 2020-12) of the policy file, for editors. What it cannot say, [`Policy::parse`] does.
pub const SCHEMA: &str = include_str!("schema.json");

/// Limits that make no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// More than a request takes from at once.
    #[error("these are {0} limits, and a request takes from no more than {MAX_CHARGES}")]
    TooMany(usize),
    /// A budget takes too long to fill.
    #[error(transparent)]
    Retention(#[from] admit::RetentionError),
    /// A name that is no scope; there is none among those made here.
    #[error(transparent)]
    Scope(admit::ScopeError),
}

/// A policy that can be used.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What the program itself is told.
    pub server: Server,
    /// The budgets, in the order of their names.
    pub budgets: Vec<BudgetRule>,
    /// Which requests are held to which of them.
    pub routes: Routes,
    /// Which descriptors are, in the order of the file.
    pub descriptors: Vec<Descriptor>,
}

impl Policy {
    /// Reads the text of a policy file. `file` is its name, for what is told of it.
    ///
    /// # Errors
    /// [`PolicyErrors`] with everything that is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Self, PolicyErrors> {
        document("a policy", file, text, Hides::LikeTokens, Self::read)
    }

    /// A policy of a few budgets that hold for every request, all kept by the same.
    ///
    /// # Errors
    /// [`LimitsError`] if a budget is too slow to fill, or there are too many.
    pub fn of_limits(limits: &[Budget], by: KeyPart) -> Result<Self, LimitsError> {
        if limits.len() > MAX_CHARGES {
            return Err(LimitsError::TooMany(limits.len()));
        }
        let slowest = limits.iter().map(|limit| limit.time_to_fill()).max().unwrap_or_default();
        let server = Server {
            retention: Retention::new(slowest.max(Retention::DEFAULT.duration()))?,
            ..Server::default()
        };
        let budgets: Result<Vec<_>, _> = limits
            .iter()
            .enumerate()
            .map(|(i, limit)| Ok(BudgetRule::plain(format!("limit-{}", i + 1).parse()?, *limit, by.clone())))
            .collect();
        let budgets: Vec<BudgetRule> =
            budgets.map_err(|error: admit::ScopeError| LimitsError::Scope(error))?;
        let route = Route {
            pattern: Pattern { methods: Vec::new(), path: "/{*path}".to_owned() },
            budgets: (0..budgets.len()).collect(),
            idempotency: None,
        };
        let problems = Problems::default();
        let root = Route { pattern: Pattern { methods: Vec::new(), path: "/".to_owned() }, ..route.clone() };
        let routes = Routes::new([(route, 0..0), (root, 0..0)].into_iter(), &problems);
        Ok(Self { server, budgets, routes, descriptors: Vec::new() })
    }

    fn read<'a>(mut section: Section<'a>, problems: &'a Problems) -> Option<Self> {
        let server = Server::read(&mut section, problems);
        let budgets = Budgets::read(&mut section, &server, problems);
        let routes = section.member("routes", |value| {
            Ok(list(value, problems, |value| Route::read(value, &budgets, &server, problems)))
        });
        let descriptors = section.member("descriptors", |value| {
            Ok(list(value, problems, |value| Descriptor::read(value, &budgets, problems)))
        });
        server.decisions.check(&budgets.rules, &section, problems);
        section.finish();
        let routes = Routes::new(routes.into_iter().flatten().flatten(), problems);
        Some(Self { server, budgets: budgets.rules, routes, descriptors: descriptors.unwrap_or_default() })
    }

    /// What to write in place of the name of a budget that there is not.
    pub fn budget_like(&self, name: &str) -> String {
        match self.budgets.is_empty() {
            true => format!("the policy has none: add [budgets.{name}]"),
            false => section::suggestion(name, self.budgets.iter().map(|budget| budget.scope.as_str())),
        }
    }

    /// All scopes, each with its budget unless callers bring that.
    pub fn scopes(&self) -> impl Iterator<Item = (&Scope, Option<&BudgetRule>)> {
        let rules = self.budgets.iter().map(|budget| (&budget.scope, Some(budget)));
        rules.chain(self.server.decisions.scopes.iter().map(|scope| (scope, None)))
    }

    /// The scope of this name.
    pub fn scope(&self, name: &str) -> Option<(&Scope, Option<&BudgetRule>)> {
        self.scopes().find(|(scope, _)| scope.as_str() == name)
    }

    /// The budgets that are leased, and how much of each.
    pub fn leases(&self) -> Leases {
        let leased = |budget: &BudgetRule| Some((budget.scope.clone(), budget.lease?));
        Leases::new(self.budgets.iter().filter_map(leased))
    }

    /// What it says that may mean something else than it seems to: for people, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> =
            self.budgets_of_routes().filter_map(BudgetRule::never_granted).collect();
        warnings.extend(self.unseen_bodies());
        warnings
    }

    /// Those that a route names.
    fn budgets_of_routes(&self) -> impl Iterator<Item = &BudgetRule> {
        let named = |index: &usize| self.routes.iter().any(|route| route.budgets.contains(index));
        self.budgets.iter().enumerate().filter(move |(index, _)| named(index)).map(|(_, budget)| budget)
    }

    fn unseen_bodies(&self) -> Vec<String> {
        if !self.server.upstream.urls.is_empty() {
            return Vec::new();
        }
        // Without an upstream routes are for those who ask about requests, and these send no body.
        let unseen = |budget: &BudgetRule| budget.asks_for_body() || budget.cost == CostSource::BodyBytes;
        let of_route = |route: &Route| {
            let budgets =
                route.budgets.iter().map(|&index| &self.budgets[index]).filter(|budget| unseen(budget));
            let warning = |budget: &BudgetRule| {
                format!(
                    "budget {:?} of {} goes by the body, which is not seen where there is no upstream: at /authorize \
                     every body is empty",
                    budget.scope.as_str(),
                    route.pattern
                )
            };
            budgets.map(warning).collect::<Vec<_>>()
        };
        self.routes.iter().flat_map(of_route).collect()
    }

    /// What its store is built with.
    ///
    /// # Errors
    /// [`admit::ScopesError`] if there is no budget and no scope, or more than a store takes.
    pub fn rules(&self) -> Result<Rules, admit::ScopesError> {
        let budgets = self.budgets.iter().map(|budget| &budget.scope);
        let scopes = Scopes::new(budgets.chain(&self.server.decisions.scopes).cloned())?;
        Ok(Rules { scopes, retention: self.server.retention })
    }
}
