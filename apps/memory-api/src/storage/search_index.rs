//! What a job adds to the tables that are searched and listed, worked out before any of them is locked.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::batch::NewItem;
use crate::words;

/// The kind of item that is listed as a skill.
pub(crate) const SKILL: &str = "skill";

/// The rows that one job brings.
#[derive(Debug)]
pub(crate) struct IndexRows {
    pub(crate) items: Vec<ItemRow>,
    /// Skills by the SHA-256 of their text: the key of their table, and the order in which rows are locked.
    pub(crate) skills: BTreeMap<[u8; 32], SkillRow>,
}

#[derive(Debug)]
pub(crate) struct ItemRow {
    pub(crate) kind: String,
    pub(crate) text: String,
    /// As a JSON list.
    pub(crate) tags: String,
    /// What the item is found by: the words of its text and of its tags.
    pub(crate) words: String,
}

#[derive(Debug)]
pub(crate) struct SkillRow {
    pub(crate) text: String,
    pub(crate) times: i64,
}

impl IndexRows {
    /// The rows of a job's payload.
    ///
    /// # Errors
    /// If the payload is not what [`payload`] made.
    pub(crate) fn of(payload: &str) -> Result<Self, serde_json::Error> {
        let batch: Vec<NewItem> = serde_json::from_str(payload)?;
        let mut skills: BTreeMap<[u8; 32], SkillRow> = BTreeMap::new();
        let mut items = Vec::with_capacity(batch.len());
        for item in batch {
            if item.kind == SKILL {
                let row = skills.entry(Sha256::digest(&item.text).into());
                row.or_insert_with(|| SkillRow { text: item.text.clone(), times: 0 }).times += 1;
            }
            let tags = serde_json::to_string(item.tags())?;
            let words = words::joined(
                std::iter::once(item.text.as_str()).chain(item.tags().iter().map(String::as_str)),
            );
            items.push(ItemRow { kind: item.kind, text: item.text, tags, words });
        }
        Ok(Self { items, skills })
    }
}

/// Items as a job keeps them until they are indexed.
pub(crate) fn payload(items: &[NewItem]) -> Result<String, serde_json::Error> {
    serde_json::to_string(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_skills_are_one_row() {
        let item = |kind: &str, text: &str, tags: Option<Vec<String>>| NewItem {
            kind: kind.into(),
            text: text.into(),
            tags,
        };
        let batch = [
            item("skill", "Knit", None),
            item("note", "Knit", Some(vec!["Wool".into()])),
            item("skill", "Knit", None),
        ];
        let rows = IndexRows::of(&payload(&batch).unwrap()).unwrap();
        assert_eq!(
            rows.skills.values().map(|row| (row.text.as_str(), row.times)).collect::<Vec<_>>(),
            [("Knit", 2)]
        );
        assert_eq!((rows.items[1].words.as_str(), rows.items[1].tags.as_str()), ("knit wool", r#"["Wool"]"#));
    }
}
