//! `ShouldRateLimit` over gRPC, without the service that is generated for it.
//!
//! A call is one message and an answer is one, so that little is left of the protocol: five bytes before each message, and the
//! status behind the answer. A call that is anything else (compressed, or of several frames that make no one message) goes
//! to the generated service, which tells what is wrong with it.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use admit_listen::Answering;
use admit_tower::{ReadBody, Rejection};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use tonic::Status;
use tower::ServiceExt;

use super::{MAX_CALL_BYTES, RateLimits};
use crate::{bearer, body};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Of a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

impl RateLimits {
    /// The answer to such a call; any other request comes back. Calls of another form are answered by `generated`.
    pub(crate) fn answer(&self, generated: &Router, request: Request) -> ControlFlow<Answering, Request> {
        let headers = request.headers();
        let is_plain = request.uri().path() == PATH
            && *request.method() == Method::POST
            && headers.get(CONTENT_TYPE) == Some(&GRPC)
            && !headers.contains_key("grpc-encoding")
            && bearer::refusal(&self.decider.policy, headers).is_none();
        if !is_plain {
            return ControlFlow::Continue(request);
        }
        ControlFlow::Break(Box::pin(self.clone().call(generated.clone(), request)))
    }

    async fn call(self, generated: Router, request: Request) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let ReadBody { bytes, held, .. } =
            match body::whole(&self.decider.read_ahead, body, MAX_CALL_BYTES).await {
                Ok(read) => read,
                Err(rejection) => return unread(&rejection).into_http(),
            };
        let Some(call) = message(&bytes) else {
            drop(held); // The generated service counts the bytes itself.
            let request = Request::from_parts(parts, Body::from(bytes));
            let answered: Result<_, Infallible> = generated.oneshot(request).await;
            let Ok(response) = answered;
            return response;
        };
        match self.decide(&call).await {
            Ok(answer) => {
                let mut response = Response::new(Body::new(Answer::new(&answer)));
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                response
            }
            Err(undecided) => Status::from(undecided).into_http(),
        }
    }
}

/// The one message of a call, if that is what it is.
fn message(call: &Bytes) -> Option<RateLimitRequest> {
    let (prefix, message) = call.split_first_chunk::<PREFIX_BYTES>()?;
    let [0, length @ ..] = *prefix else { return None };
    if u32::from_be_bytes(length) as usize != message.len() {
        return None;
    }
    RateLimitRequest::decode(message).ok()
}

/// As the bound on other calls has it.
fn unread(rejection: &Rejection) -> Status {
    match rejection {
        Rejection::BodyTooLarge { .. } => body::too_long(),
        Rejection::BodyTooSlow => body::too_slow(),
        Rejection::Overloaded => body::no_room(),
        _ => Status::cancelled("the call broke off"),
    }
}

/// The message of an answer, and its status behind it.
struct Answer(Option<Bytes>, Option<HeaderMap>);

impl Answer {
    fn new(answer: &RateLimitResponse) -> Self {
        let length = answer.encoded_len();
        let mut message = BytesMut::with_capacity(PREFIX_BYTES + length);
        message.put_u8(0);
        message.put_u32(u32::try_from(length).unwrap_or(u32::MAX)); // Of 64 descriptors it is some kilobytes.
        answer.encode_raw(&mut message);
        let trailers = HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
        Self(Some(message.freeze()), Some(trailers))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self(message, trailers) = &mut *self;
        let frame = message.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.1.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default() // Told, it would stand in the head, which gRPC does not have there.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_message_that_is_not_compressed_is_read_here() {
        let call = RateLimitRequest { domain: "edge".into(), ..RateLimitRequest::default() };
        let bytes =
            |flag: u8, length: u32| [&[flag], &length.to_be_bytes()[..], &call.encode_to_vec()].concat();
        let length = u32::try_from(call.encoded_len()).unwrap();
        let read = |bytes: Vec<u8>| message(&bytes.into());
        assert_eq!(read(bytes(0, length)), Some(call.clone()));
        for (flag, length) in [(1, length), (0, length + 1), (0, length - 1), (0, u32::MAX)] {
            assert_eq!(read(bytes(flag, length)), None);
        }
        assert_eq!(read([bytes(0, length), bytes(0, length)].concat()), None, "there are two");
        assert_eq!(read(vec![0, 0, 0]), None);
        assert_eq!(read(vec![0, 0, 0, 0, 1, 0xff]), None, "it is no message");
    }
}
