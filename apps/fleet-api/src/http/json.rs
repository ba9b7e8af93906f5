//! JSON from outside: a member that stands twice is refused, at every depth, where most parsers keep the last.
//!
//! Nesting is bounded by serde_json (128 levels), size by whoever read the bytes.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value that `bytes` hold, and nothing besides it.
///
/// # Errors
/// If they are not UTF-8 or not JSON, nest too deep, or an object has a member twice.
pub fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    // serde_json checks UTF-8 within strings alone; outside of them only ASCII is JSON.
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
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
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the member {name:?} stands twice")));
            }
            let value = members.next_value_seed(Strict)?;
            object.insert(name, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_json_reads_as_serde_json_reads_it() {
        let text = br#"{"a":[1,-2,3.5,"x",null,true],"b":{"a":18446744073709551615}}"#;
        assert_eq!(parse(text).unwrap(), serde_json::from_slice::<Value>(text).unwrap());
    }

    #[test]
    fn a_member_that_stands_twice_is_refused_at_every_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("the member \"a\" stands twice at line 1"), "{error}");
        }
    }

    #[test]
    fn depth_rest_and_bytes_are_checked() {
        assert!(parse("[".repeat(129).as_bytes()).unwrap_err().to_string().contains("recursion limit"));
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"\"\xff\"").is_err());
        assert!(parse(b"1e999").is_err());
        assert!(parse(b"").is_err());
    }
}
