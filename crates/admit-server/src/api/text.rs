//! Texts and numbers of calls, within bounds.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A text of 1 to `MAX` characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text<const MAX: usize>(pub(super) String);

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<const MIN: u32, const MAX: u32>(pub(super) u32);

/// A text, or a list of up to `MAX_PARTS` texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Texts(pub(super) Vec<String>);

/// The longest part of a key, in characters.
pub(super) const MAX_PART_CHARS: usize = 1_024;
/// The most parts of a key.
pub(super) const MAX_PARTS: usize = 16;

/// For members that may be absent, and are not null when they are there.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn bounded<E: Error>(text: &str, max: usize) -> Result<String, E> {
    match text.chars().count() {
        length if (1..=max).contains(&length) => Ok(text.to_owned()),
        length => Err(E::custom(format_args!("{length} characters; it takes 1 to {max}"))),
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Text<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(&String::deserialize(deserializer)?, MAX).map(Self)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?; // JSON has one kind of number: 60.0 is 60.
        if number.fract() == 0.0 && (f64::from(MIN)..=f64::from(MAX)).contains(&number) {
            return Ok(Self(number as u32));
        }
        Err(D::Error::custom(format_args!("{number} is not a whole number from {MIN} to {MAX}")))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Texts, E> {
        Ok(Texts(vec![bounded(text, MAX_PART_CHARS)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(Text(text)) = list.next_element::<Text<MAX_PART_CHARS>>()? {
            texts.push(text);
            if texts.len() > MAX_PARTS {
                return Err(A::Error::custom(format_args!("a key has no more than {MAX_PARTS} parts")));
            }
        }
        Ok(Texts(texts))
    }
}
