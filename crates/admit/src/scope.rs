//! The names of budgets, a closed set in each deployment.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a budget that a bucket belongs to: 1 to 63 of `a`–`z`, `0`–`9`, `_` and `-`, a letter first.
///
/// ```
/// use admit::Scope;
///
/// const INGEST: Scope = Scope::from_static("ingest");
/// assert_eq!(INGEST, "ingest".parse()?);
/// assert!("Ingest".parse::<Scope>().is_err());
/// # Ok::<(), admit::ScopeError>(())
/// ```
#[derive(Clone)]
pub struct Scope(Name);

#[derive(Clone)]
enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

/// A text that cannot name a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a scope; use 1 to 63 of a-z, 0-9, _ and -, a letter first")]
pub struct ScopeError(String);

impl Scope {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 63;

    /// A scope known at compile time.
    ///
    /// # Panics
    /// If the name is not valid; in a `const`, that is a compile error.
    #[allow(clippy::panic)] // For names in the source: a wrong one does not compile when used as documented.
    pub const fn from_static(name: &'static str) -> Self {
        if !is_valid(name) {
            panic!("a scope is 1 to 63 of a-z, 0-9, _ and -, a letter first");
        }
        Self(Name::Static(name))
    }

    /// The name.
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Static(name) => name,
            Name::Shared(name) => name,
        }
    }
}

const fn is_valid(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > Scope::MAX_LEN || !bytes[0].is_ascii_lowercase() {
        return false;
    }
    let mut i = 0;
    while i < bytes.len() {
        if !matches!(bytes[i], b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-') {
            return false;
        }
        i += 1;
    }
    true
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(name: &str) -> Result<Self, ScopeError> {
        if is_valid(name) { Ok(Self(Name::Shared(name.into()))) } else { Err(ScopeError(name.to_owned())) }
    }
}

impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scope {}

impl PartialOrd for Scope {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scope {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (one, other) = (self.as_str(), other.as_str());
        // Mostly the scope of a charge and that of the rules are one text.
        if std::ptr::eq(one, other) { std::cmp::Ordering::Equal } else { one.cmp(other) }
    }
}

impl std::hash::Hash for Scope {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.as_str())
    }
}

/// The closed set of scopes that a store is built with, in order, each once. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Arc<[Scope]>);

/// A list that cannot be a set of scopes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopesError {
    /// A store without scopes could grant nothing.
    #[error("the set of scopes is empty; name at least one")]
    Empty,
    /// More than [`Scopes::MAX`].
    #[error("{0} scopes are more than the {max} that a store takes", max = Scopes::MAX)]
    TooMany(usize),
}

impl Scopes {
    /// The most scopes of one store. They are listed in a CHECK constraint and label metrics; data belongs in keys.
    pub const MAX: usize = 256;

    /// The set of these scopes; duplicates count once.
    ///
    /// # Errors
    /// [`ScopesError`] if there is none, or more than [`Scopes::MAX`].
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Result<Self, ScopesError> {
        let mut scopes: Vec<_> = scopes.into_iter().collect();
        scopes.sort();
        scopes.dedup();
        match scopes.len() {
            0 => Err(ScopesError::Empty),
            too_many if too_many > Self::MAX => Err(ScopesError::TooMany(too_many)),
            _ => Ok(Self(scopes.into())),
        }
    }

    /// Whether `scope` is one of the set.
    pub fn contains(&self, scope: &Scope) -> bool {
        self.position(scope).is_some()
    }

    /// Where `scope` stands in the order of the set; nothing if it is not one of it.
    #[inline]
    pub fn position(&self, scope: &Scope) -> Option<usize> {
        self.0.binary_search(scope).ok()
    }

    /// The scopes in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Scope> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Scopes {
    type Item = &'a Scope;
    type IntoIter = std::slice::Iter<'a, Scope>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The names, separated by commas.
impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, scope) in self.iter().enumerate() {
            write!(f, "{}{scope}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for wrong in ["", "1st", "Ingest", "a b", "a'b", "é", &"a".repeat(64)] {
            assert_eq!(wrong.parse::<Scope>(), Err(ScopeError(wrong.to_owned())));
        }
        assert!("a".repeat(63).parse::<Scope>().is_ok());
    }

    #[test]
    fn the_set_is_ordered_and_closed() {
        let scopes = Scopes::new(["b", "a", "b"].map(Scope::from_static)).unwrap();
        assert_eq!(scopes.to_string(), "a, b");
        assert!(scopes.contains(&Scope::from_static("a")) && !scopes.contains(&Scope::from_static("c")));
        assert_eq!(scopes.position(&"b".parse().unwrap()), Some(1));
        assert_eq!(Scopes::new([]), Err(ScopesError::Empty));
    }
}
