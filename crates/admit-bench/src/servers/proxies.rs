//! nginx and HAProxy: a service, and proxies before it that limit requests by themselves.

use admit_testbed::{Port, Proxy, ProxyServer};
use anyhow::Result;

/// The service behind every gateway: nginx, which answers by itself.
pub(crate) struct Service {
    _server: ProxyServer,
    port: Port,
}

impl Service {
    pub(crate) fn start() -> Result<Self> {
        let port = Port::free()?;
        let config = include_str!("service.conf").replace("LISTEN", &port.number().to_string());
        let server = Proxy::Nginx.start("service.conf", &[("service.conf".to_owned(), config)])?;
        Ok(Self { _server: server, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }
}

/// A proxy's own way to limit requests.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    /// nginx with `limit_req`.
    Nginx,
    /// HAProxy with a stick table.
    HaProxy,
}

/// A proxy before the service.
pub(crate) struct Proxied {
    _server: ProxyServer,
    port: Port,
}

impl Proxied {
    pub(crate) fn start(limited: Limited, service: u16) -> Result<Self> {
        let port = Port::free()?;
        let (proxy, config) = match limited {
            Limited::Nginx => (Proxy::Nginx, include_str!("limit_req.conf")),
            Limited::HaProxy => (Proxy::HaProxy, include_str!("stick_table.cfg")),
        };
        let ports = [("LISTEN", port.number()), ("SERVICE", service)];
        let config = ports
            .iter()
            .fold(config.to_owned(), |config, (name, port)| config.replace(name, &port.to_string()));
        let server = proxy.start("limited", &[("limited".to_owned(), config)])?;
        Ok(Self { _server: server, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }
}
