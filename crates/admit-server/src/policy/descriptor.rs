//! What the descriptors of an Envoy rate limit request are held to.

use std::collections::BTreeMap;

use super::budgets::Budgets;
use super::problems::Problems;
use super::route::check_entries;
use super::section::{Section, Value, Wrong, text};

/// Which descriptors are held to which budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The domain of the request; nothing for any.
    pub domain: Option<String>,
    /// The entries that a descriptor has to have, no more and no fewer, by their keys.
    pub entries: BTreeMap<String, EntryValue>,
    /// The positions of its budgets in [`Policy::budgets`](super::Policy::budgets).
    pub budgets: Vec<usize>,
}

/// The value that an entry has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// `*`: whatever it is.
    Any,
    /// This one.
    Exactly(String),
}

impl Descriptor {
    pub(super) fn read<'a>(
        value: Value<'a>,
        budgets: &Budgets<'_>,
        problems: &'a Problems,
    ) -> Result<Self, Wrong> {
        let mut section = Section::of("a descriptor", value, problems)?;
        let domain = section.member("domain", |value| text(value).map(str::to_owned));
        let entries = section.each("entries", |name, _, value| {
            let text = text(value).map_err(|wrong| wrong.note(problems)).ok()?;
            let wanted = if text == "*" { EntryValue::Any } else { EntryValue::Exactly(text.to_owned()) };
            Some((name.to_owned(), wanted))
        });
        if entries.is_empty() {
            let example = "add entries = { generic_key = \"slow\", remote_address = \"*\" }";
            problems.add(value.span(), "a descriptor has no entries", example);
        }
        let example = "[\"requests\"]";
        let named = section.required("budgets", example, |value| Ok(budgets.named(value, problems)));
        section.finish();
        let named = named.unwrap_or_default();
        for (index, span) in &named {
            check_entries(&budgets.rules[*index], span.clone(), problems);
        }
        let budgets = named.into_iter().map(|(index, _)| index).collect();
        Ok(Self { domain, entries: entries.into_iter().collect(), budgets })
    }

    /// Whether it is about a descriptor of these entries. One with two entries of one key is not: a policy has no such
    /// rule.
    pub fn matches<'e>(
        &self,
        domain: &str,
        entries: impl ExactSizeIterator<Item = (&'e str, &'e str)> + Clone,
    ) -> bool {
        let of_domain = self.domain.as_deref().is_none_or(|wanted| wanted == domain);
        let has = |(key, wanted): (&String, &EntryValue)| {
            entries.clone().any(|(found, value)| {
                found == key
                    && match wanted {
                        EntryValue::Any => true,
                        EntryValue::Exactly(wanted) => wanted == value,
                    }
            })
        };
        of_domain && entries.len() == self.entries.len() && self.entries.iter().all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two entries of one key passed for entries of two keys, and the budget of the second was charged for all as one.
    #[test]
    fn a_key_that_stands_twice_is_not_two_keys() {
        let entries = ["a", "b"].map(|key| (key.to_owned(), EntryValue::Any));
        let rule = Descriptor { domain: None, entries: entries.into(), budgets: Vec::new() };
        assert!(rule.matches("d", [("b", "1"), ("a", "2")].into_iter()));
        assert!(!rule.matches("d", [("a", "1"), ("a", "2")].into_iter()));
    }
}
