//! Reads tables of a TOML document, member by member, and notes what is wrong instead of stopping at it.

use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::MAX_POLICY_BYTES;
use super::problems::{PolicyErrors, Problems, Span};
use super::shown::Hides;

/// How alike a misspelt name must be to the one that is suggested, from 0 to 1.
const ALIKE: f64 = 0.7;

/// A value with its place.
pub(super) type Value<'a> = &'a Spanned<DeValue<'a>>;

/// A value that is not what it should be.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) span: Span,
    pub(super) message: String,
    pub(super) help: String,
}

impl Wrong {
    pub(super) fn new(value: Value<'_>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { span: value.span(), message: message.into(), help: help.into() }
    }

    pub(super) fn kind(value: Value<'_>, wanted: &str) -> Self {
        Self::new(value, format!("this is {}", a_kind(value)), format!("write {wanted}"))
    }

    pub(super) fn note(self, problems: &Problems) {
        problems.add(self.span, self.message, self.help);
    }
}

/// Reads a whole file by its top table, which people call `name`, unless it is too large or no TOML.
pub(super) fn document<T>(
    name: &str,
    file: &str,
    text: &str,
    hides: Hides,
    read: impl for<'a> FnOnce(Section<'a>, &'a Problems) -> Option<T>,
) -> Result<T, PolicyErrors> {
    let problems = Problems::default();
    if text.len() > MAX_POLICY_BYTES {
        let message = format!("the file is larger than {MAX_POLICY_BYTES} bytes");
        problems.add(0..0, message, "split it");
        return problems.none_or(file, "", hides, None);
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        problems.add(error.span().unwrap_or(0..0), error.message(), "");
    }
    // What follows from a mistake in the syntax is noise.
    let whole = errors.is_empty().then(|| Section::new(name, table.get_ref(), table.span(), &problems));
    let read = whole.and_then(|section| read(section, &problems));
    problems.none_or(file, text, hides, read)
}

/// A table that is being read. What it holds and nobody asked for is a problem at the end.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// As people call it, as in `budget "requests"`.
    name: String,
    table: &'a DeTable<'a>,
    span: Span,
    known: Vec<&'static str>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        name: impl Into<String>,
        table: &'a DeTable<'a>,
        span: Span,
        problems: &'a Problems,
    ) -> Self {
        Self { name: name.into(), table, span, known: Vec::new(), problems }
    }

    /// The value, which has to be a table.
    pub(super) fn of(
        name: impl Into<String>,
        value: Value<'a>,
        problems: &'a Problems,
    ) -> Result<Self, Wrong> {
        let table = value.get_ref().as_table().ok_or_else(|| Wrong::kind(value, "a table"))?;
        Ok(Self::new(name, table, value.span(), problems))
    }

    /// A member as `read` takes it; nothing if it is absent or wrong.
    pub(super) fn member<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Value<'a>) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.known.push(name);
        read(self.table.get(name)?).map_err(|wrong| wrong.note(self.problems)).ok()
    }

    /// The same, with `stand_in` for one that is wrong, so that no more is told of what depends on it.
    pub(super) fn member_or<T>(
        &mut self,
        name: &'static str,
        stand_in: T,
        read: impl FnOnce(Value<'a>) -> Result<T, Wrong>,
    ) -> Option<T> {
        let read = self.member(name, read);
        read.or_else(|| self.table.contains_key(name).then_some(stand_in))
    }

    /// A member that has to be there. `example` is a value in TOML.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        example: &str,
        read: impl FnOnce(Value<'a>) -> Result<T, Wrong>,
    ) -> Option<T> {
        if !self.table.contains_key(name) {
            let message = format!("{} has no {name}", self.name);
            self.problems.add(self.span.clone(), message, format!("add {name} = {example}"));
        }
        self.member(name, read)
    }

    /// The members of a table whose names are the user's own. Wrong ones are noted, and left out.
    pub(super) fn each<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&'a str, Span, Value<'a>) -> Option<T>,
    ) -> Vec<T> {
        let table = self
            .member(name, |value| value.get_ref().as_table().ok_or_else(|| Wrong::kind(value, "a table")));
        let members = table.into_iter().flatten();
        members.filter_map(|(name, value)| read(name.get_ref(), name.span(), value)).collect()
    }

    /// The place of a member, or of the whole section if it is absent.
    pub(super) fn span_of(&self, name: &str) -> Span {
        self.table.get(name).map_or(self.span.clone(), Spanned::span)
    }

    /// Notes the members that nobody asked for.
    pub(super) fn finish(self) {
        for name in self.table.keys().filter(|name| !self.known.contains(&name.get_ref().as_ref())) {
            let message = format!("{} takes no {:?}", self.name, name.get_ref());
            self.problems.add(name.span(), message, suggestion(name.get_ref(), self.known.iter().copied()));
        }
    }
}

/// The known name that is most like `name`, else all of them.
pub(super) fn suggestion<'k>(name: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    let likeness = |known: &&str| strsim::jaro_winkler(name, known);
    let best = known.clone().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match best.filter(|best| likeness(best) >= ALIKE) {
        Some(best) => format!("did you mean {best:?}?"),
        None => format!("it takes {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// A text.
pub(super) fn text<'a>(value: Value<'a>) -> Result<&'a str, Wrong> {
    value.get_ref().as_str().ok_or_else(|| Wrong::kind(value, "a text in quotes"))
}

/// A text that `T` is read from. `wanted` says what to write.
pub(super) fn parsed<T: FromStr<Err: Display>>(wanted: &str) -> impl Fn(Value<'_>) -> Result<T, Wrong> {
    move |value| {
        let text = value.get_ref().as_str().ok_or_else(|| Wrong::kind(value, wanted))?;
        text.parse().map_err(|error: T::Err| Wrong::new(value, error.to_string(), format!("write {wanted}")))
    }
}

/// A text that `T` is read from, whose error says nothing to who wrote the text.
pub(super) fn plain<T: FromStr>(wanted: &str) -> impl Fn(Value<'_>) -> Result<T, Wrong> {
    move |value| {
        let text = value.get_ref().as_str().ok_or_else(|| Wrong::kind(value, wanted))?;
        text.parse()
            .map_err(|_| Wrong::new(value, format!("{text:?} does not fit here"), format!("write {wanted}")))
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: Value<'_>) -> Result<bool, Wrong> {
    value.get_ref().as_bool().ok_or_else(|| Wrong::kind(value, "true or false"))
}

/// One of some words.
pub(super) fn one_of<T: Copy>(words: &[(&'static str, T)]) -> impl Fn(Value<'_>) -> Result<T, Wrong> {
    move |value| {
        let all = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        let text = value.get_ref().as_str().ok_or_else(|| Wrong::kind(value, &all))?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| Wrong::new(value, format!("{text:?} does not fit here"), format!("write {all}")))
    }
}

/// A list, or one value in the place of a list of one. Its wrong elements are noted, and left out.
pub(super) fn list<'a, T>(
    value: Value<'a>,
    problems: &Problems,
    mut read: impl FnMut(Value<'a>) -> Result<T, Wrong>,
) -> Vec<T> {
    let elements: Vec<Value<'a>> = match value.get_ref().as_array() {
        Some(elements) => elements.iter().collect(),
        None => vec![value],
    };
    elements
        .into_iter()
        .filter_map(|element| read(element).map_err(|wrong| wrong.note(problems)).ok())
        .collect()
}

/// As people say it, with its article.
fn a_kind(value: Value<'_>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
