//! What the `GET` endpoints take behind the question mark.
//!
//! Every parameter is known by name, stands at most once, and is checked before any budget is touched.

use admit::Key;

use crate::cursor::{Binding, CursorError};
use crate::storage::{Position, Search};
use crate::words::{self, MAX_QUERY_WORDS};

/// The longest text to search for, in characters.
pub const MAX_QUERY_CHARS: usize = 1_000;
/// How many rows make a page if the request does not say.
pub const DEFAULT_LIMIT: u32 = 20;
/// The most rows of a page.
pub const MAX_LIMIT: u32 = 100;

/// A query string that an endpoint does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// A name that is not one of the endpoint's.
    #[error("unknown parameter {0:?}; this endpoint takes {1}")]
    Unknown(String, String),
    /// A parameter twice.
    #[error("the parameter {0} stands twice")]
    Repeated(&'static str),
    /// Percent-encoded bytes that are not UTF-8.
    #[error("the query string is not UTF-8 behind its percent signs")]
    NotUtf8,
    /// A value outside of its bounds.
    #[error("the parameter {name} takes {takes}")]
    Bounds {
        /// Which parameter.
        name: &'static str,
        /// What it takes.
        takes: String,
    },
    /// A cursor that leads nowhere.
    #[error("the parameter cursor: {0}")]
    Cursor(#[from] CursorError),
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// How many rows.
    pub limit: u32,
    /// Where the last page ended.
    pub from: Option<Position>,
    /// Makes the cursor of the next page.
    pub binding: Binding,
}

/// A search.
#[derive(Clone, Debug)]
pub struct Query {
    /// What to look for.
    pub search: Search,
    /// Whether words were asked for of which none can be searched, as in `q=?!`: nothing is found.
    pub finds_nothing: bool,
    /// Makes the cursor of the next page.
    pub binding: Binding,
}

/// The values of an endpoint's parameters, in the order of their names.
fn values<const N: usize>(
    query: Option<&str>,
    names: [&'static str; N],
) -> Result<[Option<String>; N], ParamsError> {
    let mut values = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        let Some(i) = names.iter().position(|known| *known == name) else {
            let takes = if N == 0 { "none".to_owned() } else { names.join(", ") };
            return Err(ParamsError::Unknown(name.chars().take(64).collect(), takes));
        };
        if values[i].replace(value).is_some() {
            return Err(ParamsError::Repeated(names[i]));
        }
    }
    Ok(values)
}

fn decode(text: &str) -> Result<String, ParamsError> {
    let text = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| ParamsError::NotUtf8)
}

/// Nothing.
///
/// # Errors
/// [`ParamsError`] for any parameter.
pub fn none(query: Option<&str>) -> Result<(), ParamsError> {
    values(query, []).map(|[]| ())
}

/// The page of a tenant's list that is named `list`.
///
/// # Errors
/// [`ParamsError`] for the first parameter that is wrong.
pub fn list(query: Option<&str>, list: &str, tenant: &str) -> Result<List, ParamsError> {
    let [limit, cursor] = values(query, ["limit", "cursor"])?;
    let binding = Binding::of(&[list, tenant]);
    let fits = |position: &Position| match list {
        "projects" => matches!(position, Position::Project(name) if !name.contains('\0')),
        _ => matches!(position, Position::Skill(_)),
    };
    Ok(List { limit: page_limit(limit)?, from: position(binding, cursor, fits)?, binding })
}

/// The search of a tenant.
///
/// # Errors
/// [`ParamsError`] for the first parameter that is wrong.
pub fn query(query: Option<&str>, tenant: &str) -> Result<Query, ParamsError> {
    let [q, project, kind, limit, cursor] = values(query, ["q", "project", "kind", "limit", "cursor"])?;
    let q = q.unwrap_or_default();
    if q.chars().count() > MAX_QUERY_CHARS {
        return Err(ParamsError::Bounds {
            name: "q",
            takes: format!("at most {MAX_QUERY_CHARS} characters"),
        });
    }
    let project = name("project", project, crate::batch::MAX_PROJECT_CHARS)?;
    let kind = name("kind", kind, crate::batch::MAX_KIND_CHARS)?;
    let limit = page_limit(limit)?;
    let words: Vec<String> = words::words(&q).take(MAX_QUERY_WORDS).collect();
    // A long project and a short kind read differently from a short project and a long kind.
    let filters = [&project, &kind].map(|filter| filter.as_deref().map(|text| Key::hashed(text).to_string()));
    let filters = filters.map(Option::unwrap_or_default);
    let binding = Binding::of(&["query", tenant, &words.join(" "), &filters[0], &filters[1]]);
    let from = position(binding, cursor, |position| matches!(position, Position::Search { .. }))?;
    let finds_nothing = words.is_empty() && !q.trim().is_empty();
    let search = Search { tenant: tenant.to_owned(), words, project, kind, limit, from };
    Ok(Query { search, finds_nothing, binding })
}

fn page_limit(limit: Option<String>) -> Result<u32, ParamsError> {
    let Some(limit) = limit else { return Ok(DEFAULT_LIMIT) };
    let digits = !limit.is_empty() && limit.len() <= 3 && limit.bytes().all(|byte| byte.is_ascii_digit());
    let limit = digits.then(|| limit.parse().ok()).flatten();
    limit.filter(|limit| (1..=MAX_LIMIT).contains(limit)).ok_or_else(|| ParamsError::Bounds {
        name: "limit",
        takes: format!("a whole number from 1 to {MAX_LIMIT}"),
    })
}

fn name(name: &'static str, value: Option<String>, most: usize) -> Result<Option<String>, ParamsError> {
    let Some(value) = value else { return Ok(None) };
    if (1..=most).contains(&value.chars().count()) && !value.contains('\0') {
        return Ok(Some(value));
    }
    Err(ParamsError::Bounds { name, takes: format!("1 to {most} characters, U+0000 not among them") })
}

/// Where a cursor leads. Whoever makes one up gets no further than to places that `fits`.
fn position(
    binding: Binding,
    cursor: Option<String>,
    fits: impl Fn(&Position) -> bool,
) -> Result<Option<Position>, ParamsError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let position = binding.decode(&cursor)?;
    if fits(&position) { Ok(Some(position)) } else { Err(CursorError::Malformed.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ItemName;

    #[test]
    fn names_are_known_and_stand_once() {
        let unknown = ParamsError::Unknown("colour".into(), "limit, cursor".into());
        assert_eq!(list(Some("colour=red"), "skills", "a"), Err(unknown));
        assert_eq!(list(Some("limit=1&limit=1"), "skills", "a"), Err(ParamsError::Repeated("limit")));
        assert_eq!(none(Some("a")), Err(ParamsError::Unknown("a".into(), "none".into())));
        assert_eq!(list(Some("limit=%ff"), "skills", "a"), Err(ParamsError::NotUtf8));
    }

    #[test]
    fn limits_are_whole_numbers_from_1_to_100() {
        let limit = |text: &str| list(Some(&format!("limit={text}")), "skills", "a").map(|list| list.limit);
        assert_eq!(
            [limit("1"), limit("100"), list(None, "skills", "a").map(|list| list.limit)],
            [Ok(1), Ok(100), Ok(20)]
        );
        for wrong in ["", "0", "101", "-1", "%2B1", "1.0", "1e1", "9999999999999999999", "ten"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn text_is_cut_into_words() {
        let parsed = query(Some("q=Water+at%20dawn%21&project=garden&kind="), "a");
        assert!(matches!(parsed, Err(ParamsError::Bounds { name: "kind", .. })));
        let parsed = query(Some("q=Water+at%20dawn%21&project=garden"), "a").unwrap();
        assert_eq!(parsed.search.words, ["water", "at", "dawn"]);
        assert!(query(Some("q=%22%3F%21"), "a").unwrap().finds_nothing);
        assert!(!query(Some("q="), "a").unwrap().finds_nothing);
        assert!(query(Some(&format!("q={}", "a".repeat(1_001))), "a").is_err());
    }

    #[test]
    fn a_cursor_goes_with_its_search() {
        let first = query(Some("q=water&kind=note"), "a").unwrap();
        let name = |position| ItemName { job_id: uuid::Uuid::from_u128(7), position };
        let end = Position::Search { last: name(9), after: name(3) };
        let cursor = first.binding.encode(&end);
        let next = query(Some(&format!("q=water&kind=note&cursor={cursor}")), "a").unwrap();
        assert_eq!(next.search.from, Some(end));
        let other = query(Some(&format!("q=water&project=note&cursor={cursor}")), "a");
        assert!(matches!(other, Err(ParamsError::Cursor(CursorError::OtherRequest))));
    }
}
