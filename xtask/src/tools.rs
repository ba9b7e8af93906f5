//! Cargo's companions: used where they are installed, else put into `target/tools`, which `cargo clean` removes.

use std::path::PathBuf;
use std::process::Command;

use admit_testbed::tools_dir;
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

/// Makes sure that throttlecrab's server is in `target/tools`, in a release build.
///
/// # Errors
/// If it is not there and cannot be built, or may not.
pub(crate) fn throttlecrab(may_install: bool) -> Result<()> {
    let dir = tools_dir();
    if dir.join("bin/throttlecrab-server").is_file() {
        return Ok(());
    }
    if !may_install {
        bail!("throttlecrab-server is not installed");
    }
    packages::protoc()?; // Without it the build leaves out what the program needs.
    say(format!("building throttlecrab-server once into {}; this takes some minutes", dir.display()));
    let mut install = cargo(&["install", "--locked", "--quiet", "--root"]);
    step(install.arg(&dir).arg("throttlecrab-server").env("CARGO_TARGET_DIR", dir.join("build")))?;
    let _ = std::fs::remove_dir_all(dir.join("build")); // Only its size is lost if that fails.
    Ok(())
}

/// Makes sure that rate-limiter-flexible and a client of PostgreSQL for it are in `target/tools/node`.
///
/// # Errors
/// If they are not there and cannot be installed, or may not.
pub(crate) fn rate_limiter_flexible(may_install: bool) -> Result<()> {
    let dir = tools_dir().join("node");
    let is_here =
        ["rate-limiter-flexible", "pg"].iter().all(|name| dir.join("node_modules").join(name).is_dir());
    if is_here {
        return Ok(());
    }
    if !may_install {
        bail!("rate-limiter-flexible is not installed");
    }
    packages::node()?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&dir);
    step(npm.args(["rate-limiter-flexible", "pg"]))
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
        let local = [tools_dir().join("bin"), tools_dir().join("python/bin")];
        std::iter::once(PathBuf::from(self.program))
            .chain(local.map(|dir| dir.join(self.program)))
            .find(|program| succeeds(Command::new(program).args(self.version_args())))
    }

    fn version_args(&self) -> &'static [&'static str] {
        if self.program == NEXTEST.program { &["nextest", "--version"] } else { &["--version"] }
    }

    fn install(&self) -> Result<()> {
        let dir = tools_dir();
        if let Some(package) = self.python {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--target"]).arg(dir.join("python"));
            if step(pip.arg(package)).is_ok() {
                return Ok(());
            }
            say(format!("no ready-made {}; building it instead", self.program));
        }
        say(format!("building {} once into {}; this takes some minutes", self.program, dir.display()));
        // Unoptimised and without debug information: it builds in half the time, and runs once.
        let mut install = cargo(&["install", "--locked", "--quiet", "--debug", "--root"]);
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
