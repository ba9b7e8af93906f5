//! Tells when the policy's files may have changed, without looking at them again and again.
//!
//! It is the directories that are watched: an editor that renames a new file over the old one, and Kubernetes, which
//! swaps a symbolic link, leave a watch on the file itself with what is no longer there. Whether something changed is
//! told by reading; an event only says that it is time to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// The most symbolic links between a name and its file, as on Linux.
const MAX_LINKS: usize = 40;

/// Watches the directories of some files.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    changed: Arc<Notify>,
}

impl Watch {
    /// Watches nothing yet. Where the system can watch nothing, that is logged.
    pub(super) fn start() -> Self {
        let changed = Arc::new(Notify::new());
        let tell = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| matters(&event)) {
                tell.notify_one(); // However often, it is one look at the files.
            }
        });
        let watcher = watcher.map_err(|error| unwatched(&error)).ok();
        Self { watcher, watched: BTreeSet::new(), changed }
    }

    /// Watches for these files, and no others. What changed in a directory before it was watched is told, too.
    pub(super) fn follow(&mut self, files: &[PathBuf]) {
        let wanted: BTreeSet<PathBuf> = files.iter().flat_map(|file| directories(file)).collect();
        let Some(watcher) = &mut self.watcher else { return };
        for gone in self.watched.difference(&wanted) {
            let _ = watcher.unwatch(gone); // It may be deleted.
        }
        let before = std::mem::take(&mut self.watched);
        for directory in wanted {
            if before.contains(&directory) {
                self.watched.insert(directory);
                continue;
            }
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory);
                    self.changed.notify_one();
                }
                Err(error) => unwatched(&error),
            }
        }
    }

    /// Has the files looked at.
    pub(super) fn touch(&self) {
        self.changed.notify_one();
    }

    /// Ready once something may have changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn unwatched(error: &notify::Error) {
    tracing::warn!(cause = %error, "changes of the policy's files are not seen; send SIGHUP after a change");
}

/// Whether a file may be whole and another than before. While one is being written, it is not read, where the system
/// tells when it is closed: half of a policy may be a policy.
fn matters(event: &Event) -> bool {
    if event.need_rescan() {
        return true;
    }
    let tells_closing = cfg!(any(target_os = "linux", target_os = "android"));
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)) => false,
        EventKind::Modify(ModifyKind::Data(_)) => !tells_closing,
        EventKind::Create(CreateKind::File) => {
            !tells_closing || event.paths.iter().any(|path| path.is_symlink())
        }
        _ => true,
    }
}

/// The directories in which a file of this name can become another: its own, and those that symbolic links lead to.
fn directories(file: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut name = file.to_owned();
    for _ in 0..MAX_LINKS {
        let directory = name.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).to_owned();
        found.extend(directory.canonicalize());
        match std::fs::read_link(&name) {
            Ok(target) => name = directory.join(target),
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_further_directories() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let made = ["mounted", "mounted/..v1", "elsewhere"].map(|name| root.join(name));
        made.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        std::fs::write(root.join("mounted/..v1/admit.toml"), "").unwrap();
        std::os::unix::fs::symlink("..v1", root.join("mounted/..data")).unwrap();
        std::os::unix::fs::symlink("..data/admit.toml", root.join("mounted/admit.toml")).unwrap();
        std::os::unix::fs::symlink("../mounted/admit.toml", root.join("elsewhere/admit.toml")).unwrap();
        let found = directories(&root.join("elsewhere/admit.toml"));
        assert_eq!(found, made.into_iter().collect());
        assert_eq!(directories(Path::new("admit.toml")).len(), 1, "a bare name is in the working directory");
    }
}
