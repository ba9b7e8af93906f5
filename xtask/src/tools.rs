//! Cargo's companions: used where they are installed, else put into `target/tools`, which `cargo clean` removes.

use std::path::{Path, PathBuf};
use std::process::Command;

use admit_testbed::{python_dir, target_dir, tools_dir};
use anyhow::{Result, bail};

use crate::packages;
use crate::run::{cargo, root, say, step, succeeds};

/// A program, and the package that has it.
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
    /// The name of the package of Python that has the program ready-made.
    python: Option<&'static str>,
}

pub(crate) const NEXTEST: Tool = Tool { program: "cargo-nextest", package: "cargo-nextest", python: None };
pub(crate) const DENY: Tool = Tool { program: "cargo-deny", package: "cargo-deny", python: None };
pub(crate) const TYPOS: Tool = Tool { program: "typos", package: "typos-cli", python: Some("typos") };

/// The directory of schemathesis: a package of Python that the tests of the decision API run where it is.
///
/// # Errors
/// If it is not here and cannot be installed, or may not.
pub(crate) fn schemathesis(may_install: bool) -> Result<PathBuf> {
    let dir = tools_dir().join("schemathesis");
    let runs = |dir: &PathBuf| {
        let mut program = Command::new(dir.join("bin/schemathesis"));
        succeeds(program.arg("--version").env("PYTHONPATH", dir))
    };
    if !runs(&dir) {
        if !may_install {
            bail!("schemathesis is not installed");
        }
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade", "--target"]).arg(&dir);
        step(pip.arg("schemathesis"))?;
    }
    if runs(&dir) { Ok(dir) } else { bail!("schemathesis is in {} but does not run", dir.display()) }
}

/// The versions of the peers that Admit is measured beside. What they are built from else is locked.
const THROTTLECRAB: &str = "0.4.40";
const RATE_LIMITER_FLEXIBLE: &str = "11.4.0";
const NODE_POSTGRES: &str = "8.23.1";

/// Makes sure that throttlecrab's server is in `target/tools`, in a release build.
///
/// # Errors
/// If it is not there in this version and cannot be built, or may not.
pub(crate) fn throttlecrab(may_install: bool) -> Result<()> {
    let installed = std::fs::read_to_string(tools_dir().join(".crates.toml")).unwrap_or_default();
    if installed.contains(&format!("\"throttlecrab-server {THROTTLECRAB} ")) {
        return Ok(());
    }
    release("throttlecrab-server", &["throttlecrab-server", "--version", THROTTLECRAB], may_install)
}

/// Makes sure that limitador's library in a service is in `target/tools`, in a release build.
///
/// # Errors
/// If it is not there, or older than its source, and cannot be built, or may not.
pub(crate) fn limitador(may_install: bool) -> Result<()> {
    const PACKAGE: &str = "crates/admit-bench/limitador";
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let built = changed(&tools_dir().join("bin/limitador-service"));
    let sources = ["Cargo.toml", "Cargo.lock", "src/main.rs"].map(|file| root().join(PACKAGE).join(file));
    if built.is_some() && sources.iter().all(|source| changed(source) <= built) {
        return Ok(());
    }
    release("limitador-service", &["--path", PACKAGE], may_install)
}

fn release(program: &str, package: &[&str], may_install: bool) -> Result<()> {
    if !may_install {
        bail!("{program} is not installed as it should be");
    }
    packages::protoc()?; // Both have messages to compile.
    let dir = tools_dir();
    say(format!("building {program} once into {}; this takes some minutes", dir.display()));
    let mut install = cargo(&["install", "--locked", "--root"]);
    install.arg(&dir).args(package);
    // Where and how the workspace is built, so that what both need is built once.
    install.env("CARGO_TARGET_DIR", target_dir()).env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    step(&mut install)
}

/// Makes sure that rate-limiter-flexible and a client of PostgreSQL for it are in `target/tools/node`.
///
/// # Errors
/// If they are not there in these versions and cannot be installed, or may not.
pub(crate) fn rate_limiter_flexible(may_install: bool) -> Result<()> {
    let dir = tools_dir().join("node");
    let modules = [("rate-limiter-flexible", RATE_LIMITER_FLEXIBLE), ("pg", NODE_POSTGRES)];
    let is_here = |(name, version): (&str, &str)| {
        let package = std::fs::read_to_string(dir.join("node_modules").join(name).join("package.json"));
        package.is_ok_and(|package| package.contains(&format!("\"version\": \"{version}\"")))
    };
    if modules.into_iter().all(is_here) {
        return Ok(());
    }
    if !may_install {
        bail!("rate-limiter-flexible is not installed as it should be");
    }
    packages::node()?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&dir);
    step(npm.args(modules.map(|(name, version)| format!("{name}@{version}"))))
}

impl Tool {
    /// The program to run: the one on the PATH, the one in `target/tools`, or a new one there.
    ///
    /// # Errors
    /// If it is not here and cannot be installed, or may not.
    pub(crate) fn program(&self, may_install: bool) -> Result<PathBuf> {
        if let Some(program) = self.installed() {
            return Ok(program);
        }
        if !may_install {
            bail!("{} is not installed; `cargo install --locked {}` does that", self.program, self.package);
        }
        self.install()?;
        match self.installed() {
            Some(program) => Ok(program),
            None => bail!("{} was installed into {} but does not run", self.program, tools_dir().display()),
        }
    }

    fn installed(&self) -> Option<PathBuf> {
        let built = tools_dir().join("bin");
        let ready_made = self.python.map(|package| python_dir(package).join("bin"));
        std::iter::once(PathBuf::from(self.program))
            .chain([built].into_iter().chain(ready_made).map(|dir| dir.join(self.program)))
            .find(|program| succeeds(Command::new(program).args(self.version_args())))
    }

    fn version_args(&self) -> &'static [&'static str] {
        if self.program == NEXTEST.program { &["nextest", "--version"] } else { &["--version"] }
    }

    fn install(&self) -> Result<()> {
        let dir = tools_dir();
        if let Some(package) = self.python {
            if packages::pip(package).is_ok() {
                return Ok(());
            }
            say(format!("no ready-made {}; building it instead", self.program));
        }
        say(format!("building {} once into {}; this takes some minutes", self.program, dir.display()));
        // Unoptimised and without debug information: it builds in half the time, and runs once.
        let mut install = cargo(&["install", "--locked", "--debug", "--root"]);
        install.arg(&dir).arg(self.package).env("CARGO_PROFILE_DEV_DEBUG", "0");
        install.env("CARGO_TARGET_DIR", dir.join("build"));
        step(&mut install)?;
        let _ = std::fs::remove_dir_all(dir.join("build")); // Only its size is lost if that fails.
        Ok(())
    }
}

/// A command that runs `program` in the root of the workspace.
pub(crate) fn command(program: PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}
