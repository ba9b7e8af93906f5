//! Where in a JSON document a member is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// Points at a member of an object in a JSON document (RFC 6901), as in `/ingest_id` or `/meta/id`.
///
/// ```
/// use admit_tower::JsonPointer;
///
/// const INGEST_ID: JsonPointer = JsonPointer::from_static("/ingest_id");
/// assert_eq!(INGEST_ID, "/ingest_id".parse()?);
/// assert!("ingest_id".parse::<JsonPointer>().is_err());
/// # Ok::<(), admit_tower::JsonPointerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer(Cow<'static, str>);

/// A text that points at no member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no JSON pointer to a member; write a / before each name, and in names ~1 for / and ~0 for ~"
)]
pub struct JsonPointerError(String);

impl JsonPointer {
    /// A pointer known at compile time.
    ///
    /// # Panics
    /// If it is not valid; in a `const`, that is a compile error.
    #[allow(clippy::panic)] // For pointers in the source: a wrong one does not compile when used as documented.
    pub const fn from_static(pointer: &'static str) -> Self {
        if !is_valid(pointer.as_bytes()) {
            panic!("a JSON pointer to a member has a / before each name");
        }
        Self(Cow::Borrowed(pointer))
    }

    /// The pointer as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes the member out of a document; nothing if it is not there.
    pub(crate) fn take_from(&self, document: &mut Value) -> Option<Value> {
        let (parent, name) = self.0.rsplit_once('/')?;
        let name = name.replace("~1", "/").replace("~0", "~");
        document.pointer_mut(parent)?.as_object_mut()?.remove(&name)
    }
}

/// The whole document, the empty pointer, is no member.
const fn is_valid(pointer: &[u8]) -> bool {
    if pointer.is_empty() || pointer[0] != b'/' {
        return false;
    }
    let mut i = 0;
    while i < pointer.len() {
        if pointer[i] == b'~'
            && !(i + 1 < pointer.len() && (pointer[i + 1] == b'0' || pointer[i + 1] == b'1'))
        {
            return false;
        }
        i += 1;
    }
    true
}

impl FromStr for JsonPointer {
    type Err = JsonPointerError;

    fn from_str(text: &str) -> Result<Self, JsonPointerError> {
        match is_valid(text.as_bytes()) {
            true => Ok(Self(Cow::Owned(text.to_owned()))),
            false => Err(JsonPointerError(text.to_owned())),
        }
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pointer without its first `/` was taken, and every key then counted as missing.
    #[test]
    fn what_points_at_no_member_is_refused() {
        for wrong in ["", "id", "id/x", "/a~", "/a~2", "#/id"] {
            assert_eq!(wrong.parse::<JsonPointer>(), Err(JsonPointerError(wrong.into())));
        }
    }

    #[test]
    fn a_member_is_taken_out_at_any_depth() {
        let mut document = json!({"meta": {"a/b": {"~": 1}, "": 2}, "list": [{"id": 3}]});
        let mut take = |pointer: &str| pointer.parse::<JsonPointer>().unwrap().take_from(&mut document);
        assert_eq!(take("/meta/a~1b/~0"), Some(json!(1)));
        assert_eq!(take("/meta/a~1b/~0"), None);
        assert_eq!(take("/meta/"), Some(json!(2)));
        assert_eq!(take("/list/0/id"), Some(json!(3)));
        assert_eq!((take("/list/0"), take("/nowhere/id"), take("/list/x/id")), (None, None, None));
    }
}
