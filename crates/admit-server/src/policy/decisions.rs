//! What the decision service is told: where it is, who may ask, and for which scopes callers bring their own budgets.

use std::str::FromStr;

use admit::Scope;

use super::problems::Problems;
use super::section::{Section, list, parsed, suggestion};
use super::{BudgetRule, Tokens};

/// What the decision service is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The path that it is behind. Nothing: at the root where there is no upstream, and nowhere where there is one.
    pub prefix: Option<Prefix>,
    /// Who may ask it.
    pub tokens: Tokens,
    /// The scopes whose budgets come with the call, beside those of the policy's own budgets.
    pub scopes: Vec<Scope>,
}

/// A path of plain segments: `/admit`, `/internal/decisions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// A text that is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no path of plain segments")]
pub struct PrefixError(String);

impl Prefix {
    /// With its first slash, and without a last.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let segment = |part: &str| !part.is_empty() && part.bytes().all(plain) && part != "." && part != "..";
        match text.strip_prefix('/').is_some_and(|path| path.split('/').all(segment)) {
            true => Ok(Self(text.to_owned())),
            false => Err(PrefixError(text.to_owned())),
        }
    }
}

impl Decisions {
    pub(super) fn read(section: &mut Section<'_>, problems: &Problems) -> Self {
        let prefix = section.member("decisions", parsed("a path as in \"/admit\""));
        let tokens = section.member("decision_tokens", |value| Ok(Tokens::read(value, problems)));
        let scopes = section.member("scopes", |value| {
            Ok(list(value, problems, parsed::<Scope>("names as in [\"exports\"]")))
        });
        Self { prefix, tokens: tokens.unwrap_or_default(), scopes: scopes.unwrap_or_default() }
    }

    /// A scope has its budget either from the policy or from the caller.
    pub(super) fn check(&self, budgets: &[BudgetRule], section: &Section<'_>, problems: &Problems) {
        for scope in &self.scopes {
            if budgets.iter().any(|budget| budget.scope == *scope) {
                let message = format!("the scope {:?} is a budget of this file too", scope.as_str());
                problems.add(section.span_of("scopes"), message, "leave it out of scopes, or rename one");
            }
        }
    }

    /// What to write in place of a scope that there is not.
    pub fn suggestion(&self, scope: &str) -> String {
        match self.scopes.is_empty() {
            true => format!("name it in the policy: scopes = [{scope:?}]"),
            false => suggestion(scope, self.scopes.iter().map(Scope::as_str)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_path_of_plain_segments() {
        for right in ["/admit", "/a/b-c/.d"] {
            assert_eq!(right.parse::<Prefix>().unwrap().as_str(), right);
        }
        for wrong in ["", "/", "admit", "/a/", "//a", "/{a}", "/a b", "/..", "/a/./b", "/a%20"] {
            assert_eq!(wrong.parse::<Prefix>(), Err(PrefixError(wrong.into())));
        }
    }
}
