//! Short lists that take no allocation.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// As many charges as most requests have. Each more would make every decision larger that is moved about.
const INLINE: usize = 2;

/// A list that is mostly very short: an answer for each charge of a take. Up to two values lie in the list itself, more
/// on the heap. It is used as the slice that it is.
///
/// ```
/// use admit::Few;
///
/// let few: Few<u32> = [1, 2].into_iter().collect();
/// assert_eq!(few, [1, 2]);
/// assert_eq!((few.len(), few[0], few.iter().sum::<u32>()), (2, 1, 3));
/// ```
pub struct Few<T>(SmallVec<[T; INLINE]>);

/// The values of a [`Few`], one by one.
pub struct FewIntoIter<T>(smallvec::IntoIter<[T; INLINE]>);

impl<T> Few<T> {
    /// An empty list.
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Adds a value at the end.
    pub fn push(&mut self, value: T) {
        self.0.push(value);
    }

    /// A list of one.
    #[inline]
    pub(crate) fn one(value: T) -> Self {
        let mut one = SmallVec::new();
        one.push(value);
        Self(one)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Clone> Clone for Few<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// As a slice is shown.
impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(values: Vec<T>) -> Self {
        Self(SmallVec::from_vec(values))
    }
}

impl<T, const N: usize> From<[T; N]> for Few<T> {
    fn from(values: [T; N]) -> Self {
        values.into_iter().collect()
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = FewIntoIter<T>;

    fn into_iter(self) -> FewIntoIter<T> {
        FewIntoIter(self.0.into_iter())
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Iterator for FewIntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for FewIntoIter<T> {}

impl<T: fmt::Debug> fmt::Debug for FewIntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: PartialEq> PartialEq<[T]> for Few<T> {
    fn eq(&self, other: &[T]) -> bool {
        **self == *other
    }
}

impl<T: PartialEq> PartialEq<Vec<T>> for Few<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        **self == **other
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Few<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_list_is_the_same_list() {
        for length in 0..5 {
            let values: Vec<usize> = (0..length).collect();
            let few = Few::from(values.clone());
            assert_eq!(few, values);
            assert_eq!(few.clone().into_iter().collect::<Vec<_>>(), values);
            assert_eq!(format!("{few:?}"), format!("{values:?}"));
        }
    }

    #[test]
    fn a_value_that_is_dropped_is_dropped_once() {
        let shared = std::sync::Arc::new(());
        let mut few = Few::one(shared.clone());
        few.push(shared.clone());
        few.push(shared.clone());
        let mut values = few.into_iter();
        assert!(values.next().is_some());
        drop(values);
        assert_eq!(std::sync::Arc::strong_count(&shared), 1);
    }
}
