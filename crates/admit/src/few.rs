//! Short lists that take no allocation.

use std::ops::{Deref, DerefMut};
use std::{array, fmt, option, vec};

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
#[derive(Clone)]
pub struct Few<T>(Values<T>);

/// Plain values rather than bytes that may hold some, so that a compiler can keep them in registers. Room for more than
/// two would make every decision larger that is moved about.
#[derive(Clone)]
enum Values<T> {
    One(T),
    Two([T; 2]),
    Many(Vec<T>),
}

/// The values of a [`Few`], one by one.
#[derive(Clone, Debug)]
pub struct FewIntoIter<T>(ValuesIntoIter<T>);

#[derive(Clone, Debug)]
enum ValuesIntoIter<T> {
    One(option::IntoIter<T>),
    Two(array::IntoIter<T, 2>),
    Many(vec::IntoIter<T>),
}

impl<T> Few<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self(Values::Many(Vec::new()))
    }

    /// Adds a value at the end.
    pub fn push(&mut self, value: T) {
        self.0 = match std::mem::replace(&mut self.0, Values::Many(Vec::new())) {
            Values::One(first) => Values::Two([first, value]),
            Values::Two([first, second]) => Values::Many(vec![first, second, value]),
            Values::Many(none) if none.capacity() == 0 => Values::One(value),
            Values::Many(mut values) => {
                values.push(value);
                Values::Many(values)
            }
        };
    }

    /// A list of one.
    #[inline]
    pub(crate) const fn one(value: T) -> Self {
        Self(Values::One(value))
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
        match &self.0 {
            Values::One(value) => std::slice::from_ref(value),
            Values::Two(values) => values,
            Values::Many(values) => values,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Values::One(value) => std::slice::from_mut(value),
            Values::Two(values) => values,
            Values::Many(values) => values,
        }
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
        let mut values = values.into_iter();
        let Some(first) = values.next() else { return Self::new() };
        let Some(second) = values.next() else { return Self(Values::One(first)) };
        let Some(third) = values.next() else { return Self(Values::Two([first, second])) };
        Self(Values::Many([first, second, third].into_iter().chain(values).collect()))
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(values: Vec<T>) -> Self {
        Self(Values::Many(values))
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
        FewIntoIter(match self.0 {
            Values::One(value) => ValuesIntoIter::One(Some(value).into_iter()),
            Values::Two(values) => ValuesIntoIter::Two(values.into_iter()),
            Values::Many(values) => ValuesIntoIter::Many(values.into_iter()),
        })
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
        match &mut self.0 {
            ValuesIntoIter::One(value) => value.next(),
            ValuesIntoIter::Two(values) => values.next(),
            ValuesIntoIter::Many(values) => values.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            ValuesIntoIter::One(value) => value.size_hint(),
            ValuesIntoIter::Two(values) => values.size_hint(),
            ValuesIntoIter::Many(values) => values.size_hint(),
        }
    }
}

impl<T> ExactSizeIterator for FewIntoIter<T> {}

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
            let mut pushed = Few::new();
            pushed.extend(values.clone());
            for mut few in [Few::from(values.clone()), values.iter().copied().collect(), pushed] {
                assert_eq!(few, values);
                assert_eq!(few.clone().into_iter().len(), length);
                assert_eq!(few.clone().into_iter().collect::<Vec<_>>(), values);
                assert_eq!(format!("{few:?}"), format!("{values:?}"));
                few.push(length);
                assert_eq!(few.last_mut(), Some(&mut { length }));
                assert_eq!(few[..length], values);
            }
        }
    }
}
