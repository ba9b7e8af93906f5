//! Which versions of the peers' libraries and programs are compared.

use admit_testbed::tools_dir;
use serde_json::Value;

/// What this program and limitador's service are built from.
const LOCK: &str = include_str!("../../../Cargo.lock");
const LIMITADOR_LOCK: &str = include_str!("../limitador/Cargo.lock");

/// Each as in `governor 0.10.4`; without those that are not here.
pub(crate) fn versions() -> Vec<String> {
    let locked = [(LOCK, "governor"), (LOCK, "tower_governor"), (LIMITADOR_LOCK, "limitador")];
    let locked = locked.map(|(lock, name)| Some(format!("{name} {}", locked_version(lock, name)?)));
    let others = [throttlecrab(), module("rate-limiter-flexible"), module("pg")];
    locked.into_iter().chain(others).flatten().collect()
}

fn locked_version<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, package) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(package.split_once('"')?.0)
}

/// By the list that `cargo install` keeps.
fn throttlecrab() -> Option<String> {
    let installed = std::fs::read_to_string(tools_dir().join(".crates.toml")).ok()?;
    let (_, rest) = installed.split_once("\"throttlecrab-server ")?;
    Some(format!("throttlecrab-server {}", rest.split_once(' ')?.0))
}

/// A module of Node.js.
fn module(name: &str) -> Option<String> {
    let package = tools_dir().join("node/node_modules").join(name).join("package.json");
    let package: Value = serde_json::from_str(&std::fs::read_to_string(package).ok()?).ok()?;
    Some(format!("{name} {}", package["version"].as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_are_in_their_locks() {
        for (lock, name) in [(LOCK, "governor"), (LOCK, "tower_governor"), (LIMITADOR_LOCK, "limitador")] {
            let version = locked_version(lock, name).unwrap();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{name} {version}");
        }
    }
}
