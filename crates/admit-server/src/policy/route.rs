//! Which requests a policy holds to which budgets.

use std::fmt;
use std::str::FromStr;

use http::Method;

use super::budgets::Budgets;
use super::idempotency::IdempotencyRule;
use super::problems::{Problems, Span};
use super::section::{Section, Value, Wrong, parsed};
use super::sources::{Carrier, CostSource, KeyPart, KeySource};
use super::{BudgetRule, Server};

/// A route: what it matches, and what its requests are held to.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Which requests.
    pub pattern: Pattern,
    /// The positions of its budgets in [`Policy::budgets`](super::Policy::budgets), in the order of the file.
    pub budgets: Vec<usize>,
    /// How its requests are kept from running twice; nothing if they may.
    pub idempotency: Option<IdempotencyRule>,
}

/// Methods and a path: `POST /v1/jobs`, `GET,HEAD /v1/jobs/{id}`, `* /static/{*path}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The methods; none for all of them.
    pub methods: Vec<Method>,
    /// The path, as the `matchit` crate has it.
    pub path: String,
}

/// A text that matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not two parts.
    #[error("{0:?} is not a method and a path")]
    Form(String),
    /// Not a method.
    #[error("{0:?} is no method in capital letters")]
    Method(String),
    /// Not a path.
    #[error("the path {0:?} does not begin with /")]
    Path(String),
    /// A character that stands in no request's path.
    #[error("no request has the path {0:?}, for its {1:?}")]
    Character(String, char),
    /// One name for two places.
    #[error("the path {0:?} has the name {1:?} twice")]
    Twice(String, String),
    /// Braces that do not fit.
    #[error("{0:?}: {1}")]
    Braces(String, String),
}

impl Pattern {
    /// The names in braces.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.path
            .split('{')
            .skip(1)
            .filter_map(|rest| rest.split_once('}'))
            .map(|(name, _)| name.trim_start_matches('*'))
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let (methods, path) = text.split_once(' ').ok_or_else(|| PatternError::Form(text.to_owned()))?;
        let (path, methods) = (path.trim(), methods.trim());
        let method = |name: &str| {
            let capital =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
            let method = capital.then(|| name.parse().ok()).flatten();
            method.ok_or_else(|| PatternError::Method(name.to_owned()))
        };
        let methods = match methods {
            "*" => Vec::new(),
            names => names.split(',').map(method).collect::<Result<_, _>>()?,
        };
        if !path.starts_with('/') {
            return Err(PatternError::Path(path.to_owned()));
        }
        // A query and a fragment are no part of the path, and a space ends it.
        if let Some(c) = path.chars().find(|c| matches!(c, '?' | '#') || c.is_whitespace()) {
            return Err(PatternError::Character(path.to_owned(), c));
        }
        let inserted = matchit::Router::new().insert(path, ());
        inserted.map_err(|error| PatternError::Braces(path.to_owned(), error.to_string()))?;
        let pattern = Self { methods, path: path.to_owned() };
        let names: Vec<&str> = pattern.names().collect();
        match names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            Some((_, name)) => Err(PatternError::Twice(pattern.path.clone(), (*name).to_owned())),
            None => Ok(pattern),
        }
    }
}

/// As it is read.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.methods.as_slice() {
            [] => f.write_str("*")?,
            [first, rest @ ..] => {
                write!(f, "{first}")?;
                rest.iter().try_for_each(|method| write!(f, ",{method}"))?;
            }
        }
        write!(f, " {}", self.path)
    }
}

impl Route {
    pub(super) fn read<'a>(
        value: Value<'a>,
        budgets: &Budgets<'_>,
        server: &Server,
        problems: &'a Problems,
    ) -> Result<Option<(Self, Span)>, Wrong> {
        let mut section = Section::of("a route", value, problems)?;
        let mut span = value.span();
        let pattern = section.required("match", "\"POST /v1/jobs\"", |value| {
            span = value.span();
            parsed::<Pattern>(
                "methods and a path, as in \"POST /v1/jobs\", \"GET,HEAD /v1/jobs/{id}\" or \"* /{*path}\"",
            )(value)
        });
        let named = section.member("budgets", |value| Ok(budgets.named(value, problems)));
        let idempotency = section.member("idempotency", |value| IdempotencyRule::read(value, problems));
        section.finish();
        let Some(pattern) = pattern else { return Ok(None) };
        let named = named.unwrap_or_default();
        for (index, span) in &named {
            let budget = &budgets.rules[*index];
            check_source(
                &budget.by,
                &format!("budget {:?}", budget.scope.as_str()),
                &pattern,
                span,
                problems,
            );
        }
        if let Some(rule) = &idempotency {
            check_source(&rule.by, "idempotency", &pattern, &span, problems);
            server.check_identity(&rule.by, "idempotency", &span, problems);
        }
        let budgets = named.into_iter().map(|(index, _)| index).collect();
        Ok(Some((Self { pattern, budgets, idempotency }, span)))
    }
}

/// What is kept by a part of a route's requests may be kept by what an HTTP request has.
fn check_source(source: &KeySource, what: &str, pattern: &Pattern, span: &Span, problems: &Problems) {
    for part in &source.parts {
        match part {
            KeyPart::Entry(_) => problems.add(
                span.clone(),
                format!("{what} is kept by {part}, and a route has no entries"),
                "entries are those of Envoy descriptors; name another source",
            ),
            KeyPart::Path(name) if !pattern.names().any(|known| known == name) => problems.add(
                span.clone(),
                format!("{what} is kept by {part}, which is not in {:?}", pattern.path),
                format!("write {{{name}}} into the path, or name another source"),
            ),
            _ => {}
        }
    }
}

/// A budget of a descriptor may read the entries, and nothing of an HTTP request.
pub(super) fn check_entries(budget: &BudgetRule, span: Span, problems: &Problems) {
    let reads_request =
        budget.by.parts.iter().any(|part| !matches!(part, KeyPart::Entry(_) | KeyPart::Constant(_)));
    let costs_request = match &budget.cost {
        CostSource::Constant(_) => false,
        CostSource::BodyBytes | CostSource::Carried { from: Carrier::Header(_) | Carrier::Json(_), .. } => {
            true
        }
    };
    if reads_request || costs_request {
        let message =
            format!("budget {:?} is kept by what a descriptor does not have", budget.scope.as_str());
        problems.add(
            span,
            message,
            "for descriptors, take keys from entry:NAME and const:TEXT, and costs from hits_addend",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_shown_as_it_is_read() {
        for text in ["POST /v1/jobs", "GET,HEAD /v1/jobs/{id}", "* /static/{*path}"] {
            assert_eq!(text.parse::<Pattern>().map(|pattern| pattern.to_string()), Ok(text.to_owned()));
        }
        let names: Vec<String> =
            "* /a/{b}/c/{*d}".parse::<Pattern>().unwrap().names().map(str::to_owned).collect();
        assert_eq!(names, ["b", "d"]);
        for wrong in [
            "/v1",
            "POST",
            "post /v1",
            "POST v1",
            ", /v1",
            "GET, /v1",
            "GET /{",
            "GET /{a}{b}",
            "GET /{*a}/b",
            "GET /x?y=1",
            "GET /x#y",
            "GET /p GET /q",
            "GET /{a}/{a}",
            "GET /{a}/b/{*a}",
        ] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
