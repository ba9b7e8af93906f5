//! A session, as it is told to its operator and recorded for replays.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What kind of access a session gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A shell.
    Ssh,
    /// The API of a Kubernetes cluster.
    K8s,
    /// A TCP connection.
    Tcp,
}

/// What exactly it leads to: one member, named as the kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Target {
    /// For [`Kind::Ssh`].
    Ssh {
        /// The account.
        user: String,
        /// The commands that may be run; any if nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allowed_commands: Option<Vec<String>>,
    },
    /// For [`Kind::K8s`].
    K8s {
        /// The user.
        user: String,
        /// The groups to act as.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        impersonate_groups: Option<Vec<String>>,
    },
    /// For [`Kind::Tcp`].
    Tcp {
        /// A name or an address.
        host: String,
        /// From 1 to 65535.
        port: u16,
    },
}

impl Target {
    /// The kind that the target is for.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Ssh { .. } => Kind::Ssh,
            Self::K8s { .. } => Kind::K8s,
            Self::Tcp { .. } => Kind::Tcp,
        }
    }
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It was issued.
    Active,
}

/// A session that was issued. Times are RFC 3339, in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Also the token's `jti`.
    pub id: Uuid,
    /// The project of the resource.
    pub project_id: Uuid,
    /// The domain of the project.
    pub domain_id: Uuid,
    /// What the session leads to.
    pub resource_id: Uuid,
    /// Who asked for it.
    pub identity_id: Uuid,
    /// What kind of access it gives.
    pub kind: Kind,
    /// How far it is.
    pub status: Status,
    /// Since when it is valid.
    pub issued_at: String,
    /// Until when.
    pub expires_at: String,
    /// When it was last used.
    pub last_active_at: String,
    /// What exactly it leads to.
    pub target: Target,
}
