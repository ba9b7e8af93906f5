//! The scopes that a store has met, by number: a bucket keeps its place while the rules around it change.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU16;
use std::sync::{Mutex, PoisonError};

use admit::{Key, Line, Rules, Scope, Single, Unavailable};
use smallvec::SmallVec;

use super::full::unavailable;

/// A bucket's place: the number of its scope, and its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) scope: NonZeroU16,
    pub(super) key: Key,
}

/// As numbers, which are quicker to hash than bytes.
impl Hash for Place {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u16(self.scope.get());
        state.write_u128(u128::from_ne_bytes(*self.key.as_bytes()));
    }
}

/// The rules of one handle of a store, with the number of each of their scopes.
pub(super) struct Numbered {
    pub(super) rules: Rules,
    /// In the order of `rules.scopes`.
    numbers: Vec<NonZeroU16>,
}

/// Every scope that the store was ever given; its position, counted from 1, is its number.
#[derive(Default)]
pub(super) struct ScopeNumbers(Mutex<Vec<Scope>>);

/// More scopes than there are numbers, counting those that rules before these had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a store in memory takes {} scopes until it is started again, and has met them all", u16::MAX)]
pub struct TooManyScopes;

/// A line of a take that was prepared by the rules of another store.
#[derive(Debug, thiserror::Error)]
#[error("scope {0} is not one of this store's")]
struct UnknownScope(Scope);

impl ScopeNumbers {
    pub(super) fn number(&self, rules: Rules) -> Result<Numbered, TooManyScopes> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<Scope> = rules.scopes.iter().filter(|scope| !known.contains(scope)).cloned().collect();
        if known.len() + new.len() > usize::from(u16::MAX) {
            return Err(TooManyScopes);
        }
        known.extend(new);
        let number = |scope: &Scope| {
            let position = known.iter().position(|other| other == scope)?;
            NonZeroU16::new(position as u16 + 1) // Checked.
        };
        let numbers = rules.scopes.iter().filter_map(number).collect(); // All of them are known by now.
        Ok(Numbered { rules, numbers })
    }
}

impl Numbered {
    pub(super) fn places(&self, lines: &[Line]) -> Result<SmallVec<[Place; 4]>, Unavailable> {
        lines.iter().map(|line| self.place(&line.scope, line.key)).collect()
    }

    pub(super) fn place(&self, scope: &Scope, key: Key) -> Result<Place, Unavailable> {
        self.place_at(self.rules.scopes.position(scope), scope, key)
    }

    /// The place of a charge that these rules checked.
    #[inline]
    pub(super) fn place_of(&self, single: &Single<'_>) -> Result<Place, Unavailable> {
        let charge = single.charge();
        self.place_at(Some(single.scope_position()), &charge.scope, charge.key)
    }

    fn place_at(&self, position: Option<usize>, scope: &Scope, key: Key) -> Result<Place, Unavailable> {
        match position.and_then(|position| self.numbers.get(position)) {
            Some(&number) => Ok(Place { scope: number, key }),
            None => Err(unavailable(UnknownScope(scope.clone()))),
        }
    }
}
