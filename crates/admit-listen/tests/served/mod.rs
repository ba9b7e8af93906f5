//! A listener that serves a test.
#![allow(unreachable_pub, dead_code)] // Each test takes what it needs.

use std::net::SocketAddr;
use std::time::Duration;

use admit_listen::{Answers, Limits, Tls, Workers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A limit that a test waits for.
pub const SOON: Duration = Duration::from_millis(100);

pub struct Served {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    pub serving: JoinHandle<()>,
}

impl Served {
    pub async fn start(answers: impl Into<Answers>, limits: Limits) -> Self {
        Self::start_tls(answers, None, limits).await
    }

    pub async fn start_tls(answers: impl Into<Answers>, tls: Option<Tls>, limits: Limits) -> Self {
        let answers = answers.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        // As the program has them; the services in `apps` are tested without.
        let (workers, until) = (Workers::start().unwrap(), shutdown.clone());
        let serving = tokio::spawn(async move {
            admit_listen::serve_tls(listener, answers, tls, limits, until, Some(&workers)).await;
        });
        Self { address, shutdown, serving }
    }

    pub async fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_ref()).await.unwrap();
        stream
    }

    /// The whole of what comes back until the connection is closed.
    pub async fn answer(&self, bytes: impl AsRef<[u8]>) -> String {
        read(self.send(bytes).await).await
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap();
    }
}

pub async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await; // A reset ends it as well.
    String::from_utf8(answer).unwrap()
}

/// Tells when it is dropped.
pub struct Told(pub mpsc::UnboundedSender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(()); // The test has ended if nobody listens.
    }
}
