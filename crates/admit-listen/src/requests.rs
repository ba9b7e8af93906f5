//! What each request of a connection meets before it is answered, and each answer behind it.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Incoming};
use hyper::service::Service;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::answers::{Answering, Answers};
use crate::protocol::Protocol;
use crate::stream::{Answer, Running};

/// Who is at the other end of the connection, in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The connection is encrypted, if this is in the extensions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encrypted;

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    pub(crate) encrypted: Option<Encrypted>,
    pub(crate) protocol: Protocol,
    /// The most headers of a request. HTTP/1.1 has counted them itself.
    pub(crate) headers: usize,
    pub(crate) shutdown: CancellationToken,
}

/// The requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    answers: Answers,
    connection: Arc<Connection>,
    running: watch::Sender<usize>,
    /// Is set when the connection begins to speak another protocol.
    switched: Arc<AtomicBool>,
}

impl Requests {
    pub(crate) fn new(answers: Answers, connection: Connection) -> Self {
        let (running, _) = watch::channel(0);
        Self { answers, connection: Arc::new(connection), running, switched: Arc::default() }
    }

    /// How many run, if the connection is one of HTTP/2.
    pub(crate) fn running(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    pub(crate) fn switched(&self) -> Arc<AtomicBool> {
        self.switched.clone()
    }
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = Answered;

    fn call(&self, request: Request<Incoming>) -> Answered {
        let Connection { peer, encrypted, protocol, headers, .. } = *self.connection;
        let is_connect = *request.method() == Method::CONNECT; // Behind which comes a tunnel.
        let then = match protocol {
            Protocol::Http1 => Then::Http1 {
                connection: self.connection.clone(),
                switched: self.switched.clone(),
                is_connect,
            },
            Protocol::Http2 => Then::Http2 {
                running: Some(Running::start(&self.running)),
                is_head: *request.method() == Method::HEAD,
            },
        };
        if request.headers().len() > headers {
            let refusal = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
            return Answered { answering: Box::pin(std::future::ready(refusal)), then };
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        if let Some(encrypted) = encrypted {
            request.extensions_mut().insert(encrypted);
        }
        Answered { answering: self.answers.answer(request), then }
    }
}

/// An answer, and what is done to it.
pub(crate) struct Answered {
    answering: Answering,
    then: Then,
}

enum Then {
    Http1 {
        connection: Arc<Connection>,
        switched: Arc<AtomicBool>,
        is_connect: bool,
    },
    Http2 {
        /// Its stream is told of its body.
        running: Option<Running>,
        is_head: bool,
    },
}

impl Future for Answered {
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.answering.as_mut().poll(cx));
        match &mut self.then {
            Then::Http1 { connection, switched, is_connect } => {
                let status = response.status();
                if status == StatusCode::SWITCHING_PROTOCOLS || *is_connect && status.is_success() {
                    switched.store(true, Ordering::Release);
                } else if connection.shutdown.is_cancelled() {
                    // hyper closes the connection behind such an answer.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
            }
            Then::Http2 { running, is_head } => {
                let running = running.take();
                if *is_head {
                    drop_body(&mut response);
                }
                response = response.map(|body| Body::new(Answer::new(body, running)));
            }
        }
        Poll::Ready(Ok(response))
    }
}

/// Of the answer to a HEAD. hyper sends such a body over HTTP/2, unlike HTTP/1.1, and clients reset the stream.
fn drop_body(response: &mut Response) {
    let body = std::mem::take(response.body_mut());
    // One that is empty already says nothing of how long the answer to a GET were.
    if let Some(length) = body.size_hint().exact().filter(|_| !body.is_end_stream()) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}
