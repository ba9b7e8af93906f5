//! JSON from outside, read strictly: no object has a member twice, as RFC 8785 demands it, and an array is no object.
//!
//! ```
//! use admit_tower::strict_json::{Object, parse};
//!
//! #[derive(serde::Deserialize)]
//! struct Point {
//!     x: i32,
//! }
//!
//! assert!(parse(br#"{"x":1,"x":2}"#).is_err());
//! assert!(serde_json::from_str::<Point>("[1]").is_ok(), "a derived Deserialize takes an array for a struct");
//! assert!(serde_json::from_str::<Object<Point>>("[1]").is_err());
//! assert_eq!(serde_json::from_str::<Object<Point>>(r#"{"x":1}"#).map(|Object(point)| point.x).ok(), Some(1));
//! ```

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The largest integer up to which every one is a double of its own.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;
/// From here on a whole number is read as a double, however it is written: 2^64.
const MAX_WHOLE: f64 = 18_446_744_073_709_551_616.0;

/// Parses a document. Depth is bounded by the parser.
///
/// # Errors
/// If it is not JSON, or an object has a member twice.
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Strict>(text).map(|Strict(value)| value)
}

/// The canonical form of RFC 8785; nothing if it would not tell this value from others, because it holds an integer
/// that doubles do not keep apart from its neighbours.
pub(crate) fn canonical(value: &Value) -> Option<Vec<u8>> {
    if !is_exact(value) {
        return None;
    }
    serde_json_canonicalizer::to_vec(value).ok()
}

/// What a value is as a text, the same however it was written: a text as it is, a whole number in decimal digits, anything else in
/// the form of RFC 8785. 7, 7.0 and 0.7e1 are one, as services read them.
pub fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Number(number) if number.is_u64() || number.is_i64() => Cow::Owned(number.to_string()),
        Value::Number(number) => match number.as_f64().filter(|number| number.fract() == 0.0) {
            Some(whole) if whole.abs() < MAX_WHOLE => Cow::Owned((whole as i128).to_string()),
            _ => formed(value),
        },
        other => formed(other),
    }
}

fn formed(value: &Value) -> Cow<'_, str> {
    let form = serde_json_canonicalizer::to_string(value);
    Cow::Owned(form.unwrap_or_else(|_| value.to_string())) // Every value has the form.
}

fn is_exact(value: &Value) -> bool {
    match value {
        // Beyond it every double is an integer, whatever was written.
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() <= MAX_EXACT),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(members) => members.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the member {name:?} stands twice")));
            }
            let Strict(value) = map.next_value()?;
            members.insert(name, value);
        }
        Ok(members.into())
    }
}

/// A `T` that stood as an object. A derived `Deserialize` also takes an array, with the fields in their order, and so
/// takes what no client means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// For `#[serde(deserialize_with = …)]` on a list of objects.
///
/// # Errors
/// If it is no list, or one of it is no object that makes a `T`.
pub fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(object)| object).collect())
}

/// For `#[serde(deserialize_with = …)]` on an enum that stands as a word. A derived `Deserialize` also takes an object whose
/// one member is named as the word, and is null.
///
/// # Errors
/// If it is no text, or a word that `T` does not have.
pub fn word<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::deserialize(String::deserialize(deserializer)?.into_deserializer())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_stands_twice_is_refused_at_any_depth() {
        let error = parse(br#"{"a":[{"b":1,"b":2}]}"#).unwrap_err().to_string();
        assert!(error.starts_with(r#"the member "b" stands twice"#), "{error}");
        assert_eq!(parse(br#"{"a":[1,-2,0.5,"x",null,true]}"#).unwrap()["a"][2], 0.5);
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn two_integers_that_one_double_stands_for_have_no_canonical_form() {
        let form = |text: &str| canonical(&parse(text.as_bytes()).unwrap());
        assert_eq!(form("[9007199254740993]"), None);
        assert_eq!(form("[-9007199254740993]"), None);
        // Once integers beyond 64 bits passed as if they were fractions, so that two batches had one content key.
        assert_eq!(form("[18446744073709551616]"), None);
        assert_eq!(form("[-18446744073709551617]"), None);
        assert_eq!(form("[1e300]"), None);
        assert_eq!(
            form(r#"{ "b": 1.0, "a": 9007199254740991 }"#).unwrap(),
            br#"{"a":9007199254740991,"b":1}"#
        );
    }
}
