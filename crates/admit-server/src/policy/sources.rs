//! Where a request has the key of its bucket and the cost of its charge.

use std::fmt;
use std::str::FromStr;

use admit::Cost;
use admit_tower::JsonPointer;
use http::HeaderName;

/// Whose bucket a charge is on: one part of the request, or several joined.
///
/// A request that lacks a part shares a bucket with all others that lack it, so that leaving a header out is no way
/// around a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
    /// At least one.
    pub parts: Vec<KeyPart>,
}

impl KeySource {
    /// Whether it takes a known API key to tell.
    pub fn asks_for_identity(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeyPart::ApiKey | KeyPart::Tenant))
    }

    /// Whether it takes the body to tell.
    pub fn asks_for_body(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeyPart::Json(_)))
    }
}

/// As it is read, with `+` between the parts.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

/// One part of a bucket's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// `api_key`: the API key of the caller.
    ApiKey,
    /// `tenant`: the tenant that the caller's API key belongs to.
    Tenant,
    /// `ip`: the client's address, behind trusted proxies; of an IPv6 address the /64.
    Ip,
    /// `header:NAME`.
    Header(HeaderName),
    /// `path:NAME`: what stands for `{NAME}` in the route's path.
    Path(String),
    /// `query:NAME`.
    Query(String),
    /// `json:/POINTER`: a member of the JSON body.
    Json(JsonPointer),
    /// `entry:NAME`: an entry of an Envoy descriptor.
    Entry(String),
    /// `const:TEXT`: the same for all, so that they share one bucket.
    Constant(String),
}

/// How much a request costs.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSource {
    /// The same for each.
    Constant(Cost),
    /// `body_bytes`: the bytes of the request's body as they come over the wire.
    BodyBytes,
    /// `header:NAME` or `json:/POINTER`: a number that the request carries.
    Carried {
        /// Where it is.
        from: Carrier,
        /// What a request without it costs; without this one, such a request is malformed.
        otherwise: Option<Cost>,
    },
}

/// Where a request carries a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// In a header.
    Header(HeaderName),
    /// In a member of the JSON body.
    Json(JsonPointer),
}

/// What a [`KeyPart`] is read from.
pub(super) const KEY_FORMS: &str =
    "api_key, tenant, ip, header:NAME, path:NAME, query:NAME, json:/POINTER, entry:NAME or const:TEXT";
/// What a [`CostSource`] is read from, besides a number.
pub(super) const COST_FORMS: &str = "a number, body_bytes, header:NAME or json:/POINTER";

/// A text that names no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// None of the forms.
    #[error("{0:?} is no source that there is")]
    Form(String),
    /// Nothing behind the colon.
    #[error("{0:?} names nothing behind the colon")]
    Nameless(String),
    /// Not a name of a header.
    #[error("{0:?} cannot name a header")]
    Header(String),
    /// Not a JSON pointer.
    #[error(transparent)]
    Pointer(#[from] admit_tower::JsonPointerError),
}

fn header(name: &str) -> Result<HeaderName, SourceError> {
    name.parse().map_err(|_| SourceError::Header(name.to_owned()))
}

impl FromStr for KeyPart {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let Some((form, name)) = text.split_once(':') else {
            return match text {
                "api_key" => Ok(Self::ApiKey),
                "tenant" => Ok(Self::Tenant),
                "ip" => Ok(Self::Ip),
                _ => Err(SourceError::Form(text.to_owned())),
            };
        };
        if name.is_empty() {
            return Err(SourceError::Nameless(text.to_owned()));
        }
        match form {
            "header" => Ok(Self::Header(header(name)?)),
            "path" => Ok(Self::Path(name.to_owned())),
            "query" => Ok(Self::Query(name.to_owned())),
            "json" => Ok(Self::Json(name.parse()?)),
            "entry" => Ok(Self::Entry(name.to_owned())),
            "const" => Ok(Self::Constant(name.to_owned())),
            _ => Err(SourceError::Form(text.to_owned())),
        }
    }
}

impl FromStr for Carrier {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        match text.split_once(':') {
            Some(("header", name)) => Ok(Self::Header(header(name)?)),
            Some(("json", pointer)) => Ok(Self::Json(pointer.parse()?)),
            _ => Err(SourceError::Form(text.to_owned())),
        }
    }
}

/// As it is read.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiKey => f.write_str("api_key"),
            Self::Tenant => f.write_str("tenant"),
            Self::Ip => f.write_str("ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Entry(name) => write!(f, "entry:{name}"),
            Self::Constant(text) => write!(f, "const:{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shown_as_it_is_read() {
        for text in [
            "api_key",
            "tenant",
            "ip",
            "header:x-user",
            "path:id",
            "query:q",
            "json:/a/b",
            "entry:e",
            "const:a:b",
        ] {
            assert_eq!(text.parse::<KeyPart>().map(|part| part.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "apikey", "header:", "header:a b", "json:a", "cookie:x", ":"] {
            assert!(wrong.parse::<KeyPart>().is_err(), "{wrong}");
        }
    }
}
