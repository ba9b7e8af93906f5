//! `admit keys`.

use std::path::PathBuf;

use admit::{Clock, Key, SystemClock, Timestamp};
use admit_store::{AnyStore, ApiKey};
use clap::{Args, Subcommand};
use data_encoding::HEXLOWER;
use miette::{IntoDiagnostic, WrapErr, bail, miette};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Output;
use super::confirm::confirm;
use super::keys_file::KeysFile;
use super::place::{Place, block_on};
use crate::policy::{Identity, KeyEntry, KeysFrom, Policy, StoreUrl};
use crate::text_of_time::rfc3339;

/// What every key begins with, so that people and scanners for secrets know one.
const PREFIX: &str = "adm_";
/// How many hexadecimal digits of a hash are shown.
const SHOWN: usize = 12;
/// How many name a key at the least.
const NAMED: usize = 6;

/// Add, list and revoke API keys.
///
/// They are where the policy's `keys` says: in a file, or in the store. Of a key only its SHA-256 is kept. A program that serves takes a changed file at once, and changes in the store within ten
/// seconds, or at SIGHUP.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  admit keys add --tenant acme --plan pro --policy admit.toml\n  \
                        admit keys list --policy admit.toml\n  admit keys revoke 20fab32e --policy admit.toml")]
pub(super) enum Keys {
    /// Make a key, and show it this once.
    Add(Add),
    /// List the keys that are known: whose they are, and the beginnings of their hashes.
    List(List),
    /// Have a key known no longer.
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// Whose key it is.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    tenant: String,
    /// What the tenant pays for.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    plan: Option<String>,
    /// What people call the key.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    #[command(flatten)]
    keeping: Keeping,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    keeping: Keeping,
}

#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// The beginning of its hash, as `admit keys list` shows it.
    hash: String,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    keeping: Keeping,
}

/// Where keys are kept.
#[derive(Debug, Args)]
pub(super) struct Keeping {
    /// The policy file, whose `keys` says where they are.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// The store, in place of what the policy says.
    #[arg(long, value_name = "URL", env = "ADMIT_STORE", hide_env_values = true)]
    store: Option<StoreUrl>,
}

/// What keeps them.
enum Kept {
    File(Box<KeysFile>),
    Store(AnyStore),
}

impl Keeping {
    async fn open(self) -> miette::Result<Kept> {
        let place = Place::new(Some(self.policy.clone()), self.store);
        let policy: Policy = place.policy_alone()?;
        match &policy.server.keys {
            Some(KeysFrom::File(file)) => {
                let beside = self.policy.parent().map(|parent| parent.join(file));
                Ok(Kept::File(Box::new(KeysFile::open(&beside.unwrap_or_else(|| file.clone()))?)))
            }
            Some(KeysFrom::Store) => Ok(Kept::Store(place.existing(&policy).await?)),
            None => Err(miette!(
                help = "write keys = \"keys.toml\" or keys = \"store\" at its top",
                "{} says nothing of where API keys are",
                self.policy.display()
            )),
        }
    }
}

impl Kept {
    async fn entries(&self) -> miette::Result<Vec<KeyEntry>> {
        let keys = match self {
            Self::File(file) => file.keys().clone(),
            Self::Store(store) => store.api_keys().await.into_diagnostic()?.into_iter().collect(),
        };
        Ok(keys.entries().into_iter().cloned().collect())
    }

    async fn add(&mut self, entry: KeyEntry, now: Timestamp) -> miette::Result<()> {
        match self {
            Self::File(file) => file.add(&entry),
            Self::Store(store) => {
                let Identity { tenant, plan, .. } = entry.identity;
                let key = ApiKey { sha256: entry.sha256, tenant, plan, name: entry.name, created_at: now };
                store.add_api_key(&key).await.into_diagnostic()
            }
        }
    }

    async fn remove(&mut self, sha256: [u8; 32]) -> miette::Result<()> {
        match self {
            Self::File(file) => file.remove(&sha256),
            Self::Store(store) => store.delete_api_key(sha256).await.into_diagnostic().map(drop),
        }
    }
}

impl Keys {
    pub(super) fn run(self, output: Output) -> miette::Result<()> {
        match self {
            Self::Add(add) => block_on(add.run(output)),
            Self::List(list) => block_on(list.run(output)),
            Self::Revoke(revoke) => block_on(revoke.run(output)),
        }
    }
}

impl Add {
    async fn run(self, output: Output) -> miette::Result<()> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| miette!("{error}"))
            .wrap_err("the system gives no random numbers")?;
        let key = format!("{PREFIX}{}", HEXLOWER.encode(&random));
        let (sha256, now): ([u8; 32], _) = (Sha256::digest(&key).into(), SystemClock.now());
        let identity = Identity { key: Key::hashed(&key), tenant: self.tenant, plan: self.plan };
        let entry = KeyEntry { sha256, identity, name: self.name, created: Some(rfc3339(now)) };
        let told = json!({"key": key, "hash": &HEXLOWER.encode(&sha256)[..SHOWN], "tenant": entry.identity.tenant, "plan": entry.identity.plan});
        self.keeping.open().await?.add(entry, now).await?;
        output.tell(&told, |style| {
            let once = style.dim("This is shown once, and kept nowhere: what is kept is its hash.");
            format!("{}\n{once}\n", style.bold(&key))
        });
        Ok(())
    }
}

impl List {
    async fn run(self, output: Output) -> miette::Result<()> {
        let entries = self.keeping.open().await?.entries().await?;
        let told: Vec<_> = entries
            .iter()
            .map(|entry| {
                json!({
                    "hash": &HEXLOWER.encode(&entry.sha256)[..SHOWN], "tenant": entry.identity.tenant,
                    "plan": entry.identity.plan, "name": entry.name, "created": entry.created,
                })
            })
            .collect();
        output.tell(&told, |style| {
            let rows: Vec<[String; 5]> = entries
                .iter()
                .map(|entry| {
                    let text = |text: &Option<String>| text.clone().unwrap_or_default();
                    let hash = HEXLOWER.encode(&entry.sha256)[..SHOWN].to_owned();
                    let Identity { tenant, plan, .. } = &entry.identity;
                    [hash, tenant.clone(), text(plan), text(&entry.name), text(&entry.created)]
                })
                .collect();
            style.table(["HASH", "TENANT", "PLAN", "NAME", "CREATED"], &rows)
        });
        Ok(())
    }
}

impl Revoke {
    async fn run(self, output: Output) -> miette::Result<()> {
        let wanted = self.hash.to_ascii_lowercase();
        // It may be the key itself, which no terminal or log should have.
        if !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("this is no hash; write the first digits of one, as admit keys list shows them");
        }
        if wanted.len() < NAMED {
            bail!("{wanted:?} is too little of a hash: write {NAMED} digits of it or more");
        }
        let mut kept = self.keeping.open().await?;
        let entries = kept.entries().await?;
        let mut found = entries.iter().filter(|entry| HEXLOWER.encode(&entry.sha256).starts_with(&wanted));
        let entry = match (found.next(), found.next()) {
            (Some(entry), None) => entry,
            (None, _) => bail!("no key has a hash that begins with {wanted:?}; admit keys list shows them"),
            (Some(_), Some(_)) => {
                bail!("several keys have a hash that begins with {wanted:?}; write more of it")
            }
        };
        let (hash, tenant) = (&HEXLOWER.encode(&entry.sha256)[..SHOWN], &entry.identity.tenant);
        let name = entry.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        confirm(&format!("Revoke the key {hash}{name} of {tenant}?"), self.yes)?;
        kept.remove(entry.sha256).await?;
        output.tell(&json!({"revoked": hash, "tenant": tenant}), |_| {
            format!("the key {hash}{name} of {tenant} is revoked\n")
        });
        Ok(())
    }
}
