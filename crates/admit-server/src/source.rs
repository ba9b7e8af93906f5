//! Where the policy comes from, and how it is read whole.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use admit::Budget;
use miette::{IntoDiagnostic, Report, WrapErr, miette};
use sha2::{Digest, Sha256};

use crate::policy::{KeyPart, Keys, KeysFrom, MAX_POLICY_BYTES, Policy, STARTER, StoreUrl, Upstream};

/// Where the policy comes from, and what stands in place of what it says.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it comes from.
    pub origin: Origin,
    /// What was said on the command line.
    pub overrides: Overrides,
}

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A file, which may change.
    File(PathBuf),
    /// The starter policy, which is part of the program.
    Starter,
    /// Budgets for every request, all kept by the same.
    Limits(Vec<Budget>, KeyPart),
}

/// What stands in place of what the policy says.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The service behind the gateway.
    pub upstream: Option<Upstream>,
    /// Where the gateway or the decision service listens.
    pub listen: Option<SocketAddr>,
    /// Where metrics, health and administration are.
    pub admin: Option<SocketAddr>,
    /// Where buckets and records are kept.
    pub store: Option<StoreUrl>,
}

/// Tells one content of the files from another, also where they cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content([u8; 32]);

/// What was read.
#[derive(Debug)]
pub struct Read {
    /// What the files had.
    pub content: Content,
    /// The files that were read, or should have been.
    pub files: Vec<PathBuf>,
    /// The policy and its keys, or all that is wrong with them.
    pub policy: Result<(Policy, Keys), Report>,
}

impl From<PathBuf> for Source {
    /// The file as it is.
    fn from(file: PathBuf) -> Self {
        Self { origin: Origin::File(file), overrides: Overrides::default() }
    }
}

impl Source {
    /// The name of the origin, for people.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::File(file) => file.display().to_string(),
            Origin::Starter => "the starter policy".to_owned(),
            Origin::Limits(..) => "the flags".to_owned(),
        }
    }

    /// The policy's own file, if it comes from one.
    pub fn file(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File(file) => Some(file),
            Origin::Starter | Origin::Limits(..) => None,
        }
    }

    /// Reads the policy alone, whose file of keys may not be there yet. Blocks on files.
    ///
    /// # Errors
    /// A report of everything that is wrong.
    pub fn read_policy(&self) -> Result<Policy, Report> {
        let Origin::File(file) = &self.origin else { return self.read().policy.map(|(policy, _)| policy) };
        let mut policy = Policy::parse(&file.display().to_string(), &text(file)?)?;
        policy.server.store = self.overrides.store.clone().unwrap_or(policy.server.store);
        Ok(policy)
    }

    /// Reads everything. Blocks on files.
    pub fn read(&self) -> Read {
        let (mut seen, mut files) = (Sha256::new(), Vec::new());
        let policy = self.read_into(&mut seen, &mut files);
        Read { content: Content(seen.finalize().into()), files, policy }
    }

    fn read_into(&self, seen: &mut Sha256, files: &mut Vec<PathBuf>) -> Result<(Policy, Keys), Report> {
        let mut read = |file: PathBuf| {
            let bytes = bytes(&file);
            seen.update([u8::from(bytes.is_ok())]);
            seen.update(match &bytes {
                Ok(bytes) => Sha256::digest(bytes),
                Err(error) => Sha256::digest(format!("{error:?}")),
            });
            let failed = format!("{} cannot be read", file.display());
            files.push(file);
            bytes.and_then(|bytes| String::from_utf8(bytes).into_diagnostic().wrap_err(failed))
        };
        let (mut policy, keys) = match &self.origin {
            Origin::File(file) => {
                let mut policy = Policy::parse(&file.display().to_string(), &read(file.clone())?)?;
                let directory = file.parent().unwrap_or(Path::new(""));
                policy.server.beside(directory);
                for file in policy.server.transport_files() {
                    let _ = read(file.to_owned()); // Who uses it says what is wrong with it.
                }
                let keys = match &policy.server.keys {
                    Some(KeysFrom::File(keys)) => {
                        let keys = directory.join(keys);
                        Keys::parse(&keys.display().to_string(), &read(keys.clone())?)?
                    }
                    // Those in the store are read from there, by who has opened it.
                    Some(KeysFrom::Store) | None => Keys::default(),
                };
                (policy, keys)
            }
            Origin::Starter => (Policy::parse("the starter policy", STARTER)?, Keys::default()),
            Origin::Limits(limits, by) => {
                (Policy::of_limits(limits, by.clone()).into_diagnostic()?, Keys::default())
            }
        };
        let (server, overrides) = (&mut policy.server, self.overrides.clone());
        if let Some(upstream) = overrides.upstream {
            server.upstream.urls = vec![upstream];
        }
        server.listen = overrides.listen.unwrap_or(server.listen);
        server.admin = overrides.admin.unwrap_or(server.admin);
        server.store = overrides.store.unwrap_or_else(|| server.store.clone());
        if let (listen, admin) = (policy.server.listen, policy.server.admin)
            && meet(listen, admin)
        {
            return Err(miette!(
                help = "give one of them another port",
                "listen is {listen} and admin is {admin}, which cannot both be listened on"
            ));
        }
        if policy.budgets.is_empty() && policy.server.decisions.scopes.is_empty() {
            return Err(miette!(
                help = "add one, as in budgets.requests = { rate = \"100/hour\", by = \"ip\" }",
                "{} has no budget",
                self.name()
            ));
        }
        Ok((policy, keys))
    }
}

/// Whether the second of two listeners would find its place taken. Port 0 is any that is free.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let same_host = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_host
}

pub(crate) fn text(file: &Path) -> Result<String, Report> {
    let failed = || format!("{} cannot be read", file.display());
    String::from_utf8(bytes(file)?).into_diagnostic().wrap_err_with(failed)
}

/// What a file has. A pipe or a device is none: who reads one may wait for ever, or read without an end.
fn bytes(file: &Path) -> Result<Vec<u8>, Report> {
    let failed = || format!("{} cannot be read", file.display());
    if !std::fs::metadata(file).into_diagnostic().wrap_err_with(failed)?.is_file() {
        return Err(miette!("{} is no regular file", file.display()));
    }
    let mut read = Vec::new();
    let opened = std::fs::File::open(file).into_diagnostic().wrap_err_with(failed)?;
    opened
        .take(MAX_POLICY_BYTES as u64 + 1)
        .read_to_end(&mut read)
        .into_diagnostic()
        .wrap_err_with(failed)?;
    match read.len() > MAX_POLICY_BYTES {
        true => Err(miette!("{} is larger than {MAX_POLICY_BYTES} bytes", file.display())),
        false => Ok(read),
    }
}
