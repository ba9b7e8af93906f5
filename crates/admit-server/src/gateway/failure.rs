//! What goes wrong between the gateway and an upstream, and what the client is told.

use std::error::Error;
use std::io;

use admit_tower::Problem;
use axum::body::Body;
use http::{Response, StatusCode};

/// Why an exchange came to no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("the upstream cannot be connected to")]
    Connect,
    #[error("the upstream did not accept a connection in time")]
    ConnectTime,
    #[error("the upstream broke off")]
    BrokeOff,
    #[error("the upstream did not begin to answer in time")]
    HeadTime,
    #[error("nothing of a body came or went for too long")]
    IdleTime,
    #[error("the exchange took too long")]
    TotalTime,
    #[error("the client sent nothing more of its request")]
    ClientSlow,
    #[error("the client broke off")]
    ClientGone,
    #[error("the response ended before the request")]
    Over,
}

impl Failure {
    /// Why a request was not answered.
    pub(super) fn of(error: &hyper_util::client::legacy::Error) -> Self {
        match (error.is_connect(), is_timeout(error)) {
            (true, true) => Self::ConnectTime,
            (true, false) => Self::Connect,
            (false, _) => Self::BrokeOff,
        }
    }

    /// Nothing of the request was sent, so that another upstream may take it.
    pub(super) fn is_before_the_request(self) -> bool {
        matches!(self, Self::Connect | Self::ConnectTime)
    }

    /// As metrics call it, if it is the upstream's failure.
    pub(super) fn kind(self) -> Option<&'static str> {
        match self {
            Self::Connect => Some("connect"),
            Self::ConnectTime => Some("connect_time"),
            Self::BrokeOff => Some("broke_off"),
            Self::HeadTime => Some("head_time"),
            Self::IdleTime => Some("idle_time"),
            Self::TotalTime => Some("total_time"),
            Self::ClientSlow | Self::ClientGone | Self::Over => None,
        }
    }

    /// What the client is told where the response has not begun.
    pub(super) fn response(self) -> Response<Body> {
        let (status, detail, error) = match self {
            Self::Connect | Self::BrokeOff => (
                StatusCode::BAD_GATEWAY,
                "the service behind this gateway cannot be reached, or broke off",
                "bad_gateway",
            ),
            Self::ConnectTime | Self::HeadTime | Self::IdleTime | Self::TotalTime => (
                StatusCode::GATEWAY_TIMEOUT,
                "the service behind this gateway did not answer in time",
                "gateway_timeout",
            ),
            Self::ClientSlow => {
                (StatusCode::REQUEST_TIMEOUT, "the request's body did not arrive in time", "request_timeout")
            }
            Self::ClientGone | Self::Over => {
                (StatusCode::BAD_REQUEST, "the request's body cannot be read to its end", "bad_request")
            }
        };
        problem(status, detail, error)
    }
}

pub(super) fn problem(status: StatusCode, detail: &'static str, error: &'static str) -> Response<Body> {
    Problem::new(status).detail(detail).with("error", error).into_response()
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        next = error.source();
    }
    false
}
