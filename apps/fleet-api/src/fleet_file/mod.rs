//! The TOML file that describes the fleet: domains, projects, resources, nodes, secrets, operators and the signing key.
//!
//! A file that is wrong stops the start with the line and column of what is wrong. The line itself is not shown: it may
//! hold a secret.

mod form;
mod position;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use admit::Budget;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use toml::Spanned;
use uuid::Uuid;

use crate::access::{DomainPolicy, Registry, Signer};
use crate::fleet::{
    self, CredentialHash, DomainId, Fleet, IdentityId, NodeId, NodeKey, Operator, ProjectId, ResourceId,
};
use crate::redacted::Redacted;
use crate::secrets::{MAX_SECRET_BYTES, StoredSecret, Vault, is_secret_name};
use form::{FileForm, NodeForm, SecretForm, VersionForm};
use position::Position;

/// The longest session that a domain may allow.
const MAX_SESSION_TTL_SECONDS: u64 = 30 * 86_400;

/// The longest issuer: every token carries it.
const MAX_ISSUER_BYTES: usize = 255;

/// The largest file that is read: a fleet of some hundred thousand nodes. A device would never end.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What the file describes, context by context.
#[derive(Debug)]
pub struct Description {
    /// Who there is.
    pub fleet: Fleet,
    /// For `secrets`.
    pub vault: Vault,
    /// For `access`.
    pub registry: Registry,
    /// For `access`: the budgets of the domains that have an issuance policy of their own.
    pub issuance: HashMap<DomainId, Budget>,
    /// For `access`.
    pub signer: Signer,
}

/// Why a file describes no fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetFileError {
    /// It, or a file that it names, cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The path.
        path: String,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// It is wrong at a place.
    #[error("line {line}, column {column}: {what}")]
    Wrong {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
}

impl Description {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`FleetFileError`].
    pub fn read(path: &Path) -> Result<Self, FleetFileError> {
        Self::parse(&read(path)?, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads the text of a file that stands in the directory `beside`.
    ///
    /// # Errors
    /// As [`Description::read`].
    pub fn parse(text: &str, beside: &Path) -> Result<Self, FleetFileError> {
        let form: FileForm = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Position::of(at, text).wrong(without_text(error.message()))
        })?;
        Reader { text, beside }.describe(&form)
    }
}

/// What serde says of a text where something else must stand, without the text: it may be a secret in the wrong place.
fn without_text(message: &str) -> String {
    const TEXT: &str = "string \"";
    match (message.find(TEXT), message.rfind("\", expected")) {
        (Some(start), Some(end)) if start + TEXT.len() <= end => {
            format!("{}string{}", &message[..start], &message[end + 1..])
        }
        _ => message.to_owned(),
    }
}

fn read(path: &Path) -> Result<String, FleetFileError> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    match file {
        Ok(bytes) if bytes as u64 > MAX_FILE_BYTES => {
            Err(io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes")))
        }
        read => read,
    }
    .map(|_| text)
    .map_err(|cause| FleetFileError::Unreadable { path: path.display().to_string(), cause })
}

struct Reader<'a> {
    text: &'a str,
    beside: &'a Path,
}

impl Reader<'_> {
    fn describe(&self, form: &FileForm) -> Result<Description, FleetFileError> {
        let (mut registry, mut issuance) = (Registry::default(), HashMap::new());
        for domain in &form.domains {
            let id = DomainId::new(self.uuid(&domain.id)?);
            let seconds = *domain.max_session_ttl_seconds.get_ref();
            if !(1..=MAX_SESSION_TTL_SECONDS).contains(&seconds) {
                let what = format!("max_session_ttl_seconds is from 1 to {MAX_SESSION_TTL_SECONDS}");
                return Err(self.wrong(&domain.max_session_ttl_seconds, what));
            }
            let policy = DomainPolicy { max_session_ttl: Duration::from_secs(seconds) };
            self.once(registry.add_domain(id, policy), &domain.id)?;
            if let Some(budget) = &domain.issuance {
                issuance.insert(id, self.budget(budget)?);
            }
        }
        for project in &form.projects {
            let domain = self.domain(&project.domain, &registry)?;
            self.once(registry.add_project(ProjectId::new(self.uuid(&project.id)?), domain), &project.id)?;
        }
        for resource in &form.resources {
            let project = self.project(&resource.project, &registry)?;
            self.once(
                registry.add_resource(ResourceId::new(self.uuid(&resource.id)?), project),
                &resource.id,
            )?;
        }
        let mut fleet = Fleet::default();
        let nodes = self.nodes(&form.nodes, &registry, &mut fleet)?;
        for operator in &form.operators {
            let projects = operator.projects.iter().map(|project| self.project(project, &registry));
            let projects = projects.collect::<Result<HashSet<_>, _>>()?;
            let identity = IdentityId::new(self.uuid(&operator.identity)?);
            let hash = self.hash(&operator.token_sha256)?;
            self.once(fleet.add_operator(Operator { identity, hash, projects }), &operator.token_sha256)?;
        }
        let mut vault = Vault::default();
        for secret in &form.secrets {
            self.secret(secret, &registry, &nodes, &mut vault)?;
        }
        Ok(Description { fleet, vault, registry, issuance, signer: self.signer(form)? })
    }

    fn nodes(
        &self,
        forms: &[NodeForm],
        registry: &Registry,
        fleet: &mut Fleet,
    ) -> Result<HashSet<NodeId>, FleetFileError> {
        let mut nodes = HashSet::new();
        for form in forms {
            let (node, domain) = (NodeId::new(self.uuid(&form.id)?), self.domain(&form.domain, registry)?);
            self.once(nodes.insert(node), &form.id)?;
            for key in &form.keys {
                let hash = self.hash(&key.sha256)?;
                let plain = |id: &str| {
                    !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic())
                };
                let key_id = match &key.id {
                    Some(id) if plain(id.get_ref()) => id.get_ref().clone(),
                    Some(id) => {
                        return Err(self.wrong(id, "a key's id is 1 to 128 printable ASCII characters"));
                    }
                    None => key.sha256.get_ref().chars().take(16).collect(),
                };
                let key_of_node = NodeKey { node, domain, key_id, hash, revoked: key.revoked };
                self.once(fleet.add_node_key(key_of_node), &key.sha256)?;
            }
        }
        Ok(nodes)
    }

    fn secret(
        &self,
        form: &SecretForm,
        registry: &Registry,
        known: &HashSet<NodeId>,
        vault: &mut Vault,
    ) -> Result<(), FleetFileError> {
        let mut secret = StoredSecret::default();
        for node in &form.nodes {
            let id = NodeId::new(self.uuid(node)?);
            if !known.contains(&id) {
                return Err(self.wrong(node, "there is no node of this id"));
            }
            secret.nodes.insert(id);
        }
        for domain in &form.domains {
            secret.domains.insert(self.domain(domain, registry)?);
        }
        secret.versions = self.versions(&form.versions)?;
        let name = form.name.get_ref();
        if !is_secret_name(name) {
            return Err(self.wrong(&form.name, "a secret's name is a-z, then up to 62 of a-z, 0-9, _ and -"));
        }
        if secret.versions.is_empty() {
            return Err(self.wrong(&form.name, "a secret has at least one version"));
        }
        self.once(vault.add(name.clone(), secret), &form.name)
    }

    fn versions(&self, forms: &[VersionForm]) -> Result<BTreeMap<u64, Redacted<Vec<u8>>>, FleetFileError> {
        let mut versions = BTreeMap::new();
        for form in forms {
            let value = match (&form.value, &form.value_base64) {
                (Some(text), None) => text.reveal().clone().into_bytes(),
                (None, Some(text)) => BASE64_STANDARD
                    .decode(text.reveal())
                    .map_err(|_| self.wrong(&form.version, "value_base64 of this version is not base64"))?,
                _ => return Err(self.wrong(&form.version, "a version has either a value or a value_base64")),
            };
            if value.len() > MAX_SECRET_BYTES {
                let what = format!("the value of this version is larger than {MAX_SECRET_BYTES} bytes");
                return Err(self.wrong(&form.version, what));
            }
            let number = *form.version.get_ref();
            if number == 0 {
                return Err(self.wrong(&form.version, "versions count from 1"));
            }
            self.once(versions.insert(number, Redacted::new(value)).is_none(), &form.version)?;
        }
        Ok(versions)
    }

    fn signer(&self, form: &FileForm) -> Result<Signer, FleetFileError> {
        let signing = form.signing.get_ref();
        let seed = match (&signing.seed, &signing.seed_file) {
            (Some(seed), None) => seed.clone(),
            (None, Some(path)) => Redacted::new(read(&self.beside.join(path))?),
            _ => return Err(self.wrong(&form.signing, "[signing] has either a seed or a seed_file")),
        };
        let issuer = signing.issuer.get_ref().as_str();
        if issuer.is_empty() || issuer.len() > MAX_ISSUER_BYTES || issuer.contains(char::is_control) {
            let what = format!("an issuer is 1 to {MAX_ISSUER_BYTES} bytes without control characters");
            return Err(self.wrong(&signing.issuer, what));
        }
        Signer::from_base64_seed(&seed, issuer).map_err(|error| self.wrong(&form.signing, error.to_string()))
    }

    fn uuid(&self, text: &Spanned<String>) -> Result<Uuid, FleetFileError> {
        match fleet::uuid(text.get_ref()) {
            Some(uuid) if !uuid.is_nil() => Ok(uuid),
            _ => Err(self.wrong(text, "an id is a UUID in the hyphenated form, and not all zeros")),
        }
    }

    fn domain(&self, text: &Spanned<String>, registry: &Registry) -> Result<DomainId, FleetFileError> {
        let id = DomainId::new(self.uuid(text)?);
        if registry.has_domain(id) { Ok(id) } else { Err(self.wrong(text, "there is no domain of this id")) }
    }

    fn project(&self, text: &Spanned<String>, registry: &Registry) -> Result<ProjectId, FleetFileError> {
        let id = ProjectId::new(self.uuid(text)?);
        if registry.has_project(id) {
            Ok(id)
        } else {
            Err(self.wrong(text, "there is no project of this id"))
        }
    }

    fn hash(&self, text: &Spanned<String>) -> Result<CredentialHash, FleetFileError> {
        let mut hash = [0; 32];
        let digits = text.get_ref().as_bytes();
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        let (pairs, rest) = digits.as_chunks::<2>();
        let decoded = pairs.len() == hash.len()
            && rest.is_empty()
            && hash.iter_mut().zip(pairs).all(|(byte, [high, low])| match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            });
        match decoded {
            true => Ok(CredentialHash::from_bytes(hash)),
            false => Err(self.wrong(
                text,
                "a SHA-256 is 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints them",
            )),
        }
    }

    fn budget(&self, text: &Spanned<String>) -> Result<Budget, FleetFileError> {
        let budget: Budget = text
            .get_ref()
            .parse()
            .map_err(|error: admit::BudgetError| self.wrong(text, error.to_string()))?;
        if budget.burst().tokens() < 1.0 {
            return Err(self
                .wrong(text, "the burst of an issuance budget is at least 1, or no session is ever issued"));
        }
        if !crate::scopes::RETENTION.allows(budget) {
            let kept = crate::scopes::RETENTION.duration();
            return Err(self.wrong(text, format!("an empty bucket must be full again within {kept:?}")));
        }
        Ok(budget)
    }

    fn once<T>(&self, first: bool, what: &Spanned<T>) -> Result<(), FleetFileError> {
        if first { Ok(()) } else { Err(self.wrong(what, "this stands here for the second time")) }
    }

    fn wrong<T>(&self, at: &Spanned<T>, what: impl Into<String>) -> FleetFileError {
        Position::of(at.span().start, self.text).wrong(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `versions = "hunter2"` was answered with `invalid type: string "hunter2", expected a sequence`.
    #[test]
    fn a_secret_in_the_wrong_place_is_not_shown() {
        for wrong in [
            "signing = \"hunter2\"",
            "signing = [\"hunter2\"]",
            "secrets = \"hunter2\"",
            "secrets = [\"hunter2\"]",
            "secrets = [{ name = \"a\", versions = \"hunter2\" }]",
            "secrets = [{ name = \"a\", versions = [\"hunter2\\\", expected\"] }]",
            "secrets = [{ name = \"a\", versions = [{ version = \"hunter2\" }] }]",
        ] {
            let error = Description::parse(wrong, Path::new("")).unwrap_err().to_string();
            assert!(error.starts_with("line 1, ") && error.contains("expected"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    /// A device, or a dump that was named by mistake, was read until the memory was full.
    #[test]
    fn a_file_larger_than_any_fleet_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.toml");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = Description::read(&path).unwrap_err();
        assert!(
            matches!(&error, FleetFileError::Unreadable { cause, .. } if cause.to_string().contains("larger"))
        );
    }
}
