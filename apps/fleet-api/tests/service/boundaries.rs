//! The contexts do not know each other, and their domains do not know the store.

use std::path::{Path, PathBuf};

const CONTEXTS: [&str; 3] = ["secrets", "access", "observability"];

/// What only `persistence` may name.
const STORE_NAMES: [&str; 7] =
    ["admit_store", "BudgetStore", "IdempotencyStore", "Charge", "RecordKey", "admit::Scope", "admit::Key"];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn no_context_names_another() {
    for context in CONTEXTS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(context);
        let sources = sources(&directory);
        assert!(sources.len() > 4);
        for source in sources {
            let text = std::fs::read_to_string(&source).unwrap();
            for other in CONTEXTS.iter().filter(|other| **other != context) {
                let named = [format!("crate::{other}"), format!("super::{other}"), format!("{{{other}")];
                assert!(!named.iter().any(|name| text.contains(name)), "{} names {other}", source.display());
            }
        }
    }
}

#[test]
fn only_persistence_knows_the_store() {
    for context in CONTEXTS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(context);
        for source in sources(&directory) {
            if source
                .components()
                .any(|part| part.as_os_str() == "persistence" || part.as_os_str() == "persistence.rs")
            {
                continue;
            }
            let text = std::fs::read_to_string(&source).unwrap();
            for name in STORE_NAMES {
                assert!(!text.contains(name), "{} knows of {name}", source.display());
            }
        }
    }
}
