//! What is remembered.

use admit::Timestamp;

use super::ItemName;

/// An item that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What names it.
    pub name: ItemName,
    /// Its project.
    pub project: String,
    /// What kind of item it is.
    pub kind: String,
    /// Its text.
    pub text: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// When it became searchable.
    pub created_at: Timestamp,
}

/// A project of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its name.
    pub name: String,
    /// How many items it has.
    pub items: i64,
    /// When the last of them became searchable.
    pub last_item_at: Timestamp,
}

/// A text that a tenant learnt as a skill, however often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// The text.
    pub text: String,
    /// How many items of kind `skill` have this text.
    pub times_learnt: i64,
    /// When the first of them became searchable.
    pub first_learnt_at: Timestamp,
    /// When the last of them did.
    pub last_learnt_at: Timestamp,
}
