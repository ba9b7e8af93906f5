//! Who there is: nodes and their keys, operators and their tokens.
//!
//! Credentials are random and long, so their SHA-256 is all that is kept. One is looked up by that hash, and the hash
//! found is compared in constant time.

use std::collections::{HashMap, HashSet};
use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// The UUID of an id as it stands in paths, bodies and files: in the hyphenated form alone, so that each has one text but
/// for the case of its letters.
pub fn uuid(text: &str) -> Option<Uuid> {
    (text.len() == Hyphenated::LENGTH).then(|| Uuid::try_parse(text).ok()).flatten()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The id of this UUID.
            pub const fn new(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

id!(
    /// A machine of the fleet.
    NodeId
);
id!(
    /// What nodes and projects belong to; budgets are shared within it.
    DomainId
);
id!(
    /// What resources belong to, and what an operator is allowed on.
    ProjectId
);
id!(
    /// What an access session leads to.
    ResourceId
);
id!(
    /// An operator, as sessions name it.
    IdentityId
);

/// The SHA-256 of a credential.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialHash([u8; 32]);

impl CredentialHash {
    /// The hash of a credential as its holder sends it.
    pub fn of(credential: &str) -> Self {
        Self(Sha256::digest(credential).into())
    }

    /// A hash that was configured.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for CredentialHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialHash(…)")
    }
}

/// One of a node's keys. A node has two while one replaces the other.
#[derive(Clone, Debug)]
pub struct NodeKey {
    /// Whose key it is.
    pub node: NodeId,
    /// The domain of that node.
    pub domain: DomainId,
    /// The key's public name.
    pub key_id: String,
    /// Its hash.
    pub hash: CredentialHash,
    /// Whether it was withdrawn.
    pub revoked: bool,
}

/// One who may open sessions.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Its name in sessions.
    pub identity: IdentityId,
    /// The hash of its token.
    pub hash: CredentialHash,
    /// The projects it is allowed on.
    pub projects: HashSet<ProjectId>,
}

/// All nodes and operators.
#[derive(Debug, Default)]
pub struct Fleet {
    nodes: HashMap<CredentialHash, NodeKey>,
    operators: HashMap<CredentialHash, Operator>,
}

impl Fleet {
    /// Adds a node's key; false if the same key is there already.
    pub fn add_node_key(&mut self, key: NodeKey) -> bool {
        self.nodes.insert(key.hash, key).is_none()
    }

    /// Adds an operator; false if the same token is there already.
    pub fn add_operator(&mut self, operator: Operator) -> bool {
        self.operators.insert(operator.hash, operator).is_none()
    }

    /// The node key that was presented, revoked or not.
    pub fn node_key(&self, presented: &str) -> Option<&NodeKey> {
        let hash = CredentialHash::of(presented);
        self.nodes.get(&hash).filter(|key| key.hash.is(&hash))
    }

    /// The operator whose token was presented.
    pub fn operator(&self, presented: &str) -> Option<&Operator> {
        let hash = CredentialHash::of(presented);
        self.operators.get(&hash).filter(|operator| operator.hash.is(&hash))
    }
}
