//! Refuses requests of HTTP/1.1 whose end two servers could see in two places (RFC 9112, section 11.2).
//!
//! hyper forgives some of them and goes by the rules of the standard: it takes a line that ends without a carriage return,
//! and goes by `Transfer-Encoding` where `Content-Length` stands beside it. A proxy in front that goes by the other one
//! takes for a part of this request what hyper takes for the next. So the bytes are looked at before hyper gets them. This
//! decides nothing else: it finds where heads begin and end, and puts something in the place of a mistake that hyper
//! answers with 400, and closes the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::lingering::Lingering;

/// What hyper gets in the place of a mistake: no head and no chunk has a zero byte, and the empty line has it look.
const REFUSED: &[u8] = b"\0\r\n\r\n";
/// How much of a line is looked at, in bytes. A line about the length of a body is no longer.
const LINE_BYTES: usize = 64;

/// The requests that a client sends, as they are read.
#[derive(Debug)]
pub(crate) struct Guarded<S> {
    stream: S,
    place: Place,
    head: Head,
    /// From when on the connection speaks another protocol.
    switched: Arc<AtomicBool>,
    /// Once the answers have ended.
    lingering: Option<Lingering>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Head,
    /// So many bytes of the body are still to come.
    Body(u64),
    /// The line before a chunk: its size as far as it was read, and whether more digits may come.
    Size(u64, bool),
    /// So many bytes of the chunk are still to come, and of the end of its line.
    Chunk(u64),
    /// The lines behind the last chunk.
    Trailers,
    /// So many bytes of [`REFUSED`] were given.
    Refused(usize),
}

/// A mistake.
#[derive(Debug)]
struct Ambiguous;

/// What a head has said so far about the length of its body.
#[derive(Debug, Default)]
struct Head {
    line: Vec<u8>,
    /// The line is longer than what was kept of it.
    is_cut: bool,
    /// A request line was read. Empty lines before it are no end of the head.
    has_begun: bool,
    ends_in_cr: bool,
    length: Option<u64>,
    is_chunked: bool,
}

impl Head {
    /// Takes a byte; true at the end of a line.
    fn take(&mut self, byte: u8) -> Result<bool, Ambiguous> {
        match (byte, self.ends_in_cr) {
            (b'\n', true) => return Ok(true),
            (b'\n', false) | (_, true) => return Err(Ambiguous),
            (b'\r', false) => self.ends_in_cr = true,
            _ if self.line.len() < LINE_BYTES => self.line.push(byte),
            _ => self.is_cut = true,
        }
        Ok(false)
    }

    fn next_line(&mut self) {
        self.line.clear();
        (self.is_cut, self.ends_in_cr) = (false, false);
    }

    /// Reads a whole line; true if it is the empty one at the end.
    fn line(&mut self) -> Result<bool, Ambiguous> {
        if self.line.is_empty() {
            return Ok(self.has_begun);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Ok(false);
        }
        let Some(colon) = self.line.iter().position(|byte| *byte == b':') else {
            return Ok(false); // hyper refuses it, or its name is too long to be one of these.
        };
        let (name, value) = (&self.line[..colon], self.line[colon + 1..].trim_ascii());
        let (is_length, is_coding) =
            (name.eq_ignore_ascii_case(b"content-length"), name.eq_ignore_ascii_case(b"transfer-encoding"));
        if !is_length && !is_coding {
            return Ok(false);
        }
        if self.is_cut || self.length.is_some() || self.is_chunked {
            return Err(Ambiguous); // There is one such line, and only one.
        }
        match is_length {
            true => self.length = Some(number(value)?),
            // No other coding is understood, and what stands before `chunked` would be lost.
            false if value.eq_ignore_ascii_case(b"chunked") => self.is_chunked = true,
            false => return Err(Ambiguous),
        }
        Ok(false)
    }
}

fn number(digits: &[u8]) -> Result<u64, Ambiguous> {
    let text = str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Ambiguous)
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, switched: Arc<AtomicBool>) -> Self {
        Self { stream, place: Place::Head, head: Head::default(), switched, lingering: None }
    }

    /// How many of the bytes are good, if not all.
    fn look(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut at = 0;
        while at < bytes.len() {
            if let Place::Body(left) | Place::Chunk(left) = &mut self.place {
                let passed = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= passed as u64;
                at += passed;
                match self.place {
                    Place::Body(0) => self.place = Place::Head,
                    Place::Chunk(0) => self.place = Place::Size(0, true),
                    _ => {}
                }
                continue;
            }
            self.byte(bytes[at]).map_err(|Ambiguous| at)?;
            at += 1;
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), Ambiguous> {
        if let Place::Size(size, more) = self.place
            && !matches!(byte, b'\r' | b'\n')
        {
            self.place = match (byte as char).to_digit(16).filter(|_| more) {
                Some(digit) => Place::Size(size.checked_mul(16).ok_or(Ambiguous)? + u64::from(digit), true),
                None => Place::Size(size, false),
            };
        }
        if !self.head.take(byte)? {
            return Ok(());
        }
        self.place = match self.place {
            Place::Head if !self.head.line()? => Place::Head,
            Place::Head => {
                let head = std::mem::take(&mut self.head);
                match head.length {
                    _ if head.is_chunked => Place::Size(0, true),
                    Some(length) if length > 0 => Place::Body(length),
                    Some(_) | None => Place::Head,
                }
            }
            Place::Size(0, _) => Place::Trailers,
            Place::Size(size, _) => Place::Chunk(size.checked_add(2).ok_or(Ambiguous)?), // With the end of its line.
            Place::Trailers if self.head.line.is_empty() => Place::Head,
            place => place,
        };
        self.head.next_line();
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !matches!(this.place, Place::Refused(_)) {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
            if this.switched.load(Ordering::Acquire) {
                return Poll::Ready(Ok(()));
            }
            let Err(good) = this.look(&buffer.filled()[before..]) else { return Poll::Ready(Ok(())) };
            tracing::debug!("a request whose end is ambiguous is refused");
            buffer.set_filled(before + good);
            this.place = Place::Refused(0);
        }
        if let Place::Refused(given) = &mut this.place {
            let rest = &REFUSED[*given..];
            let now = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..now]);
            *given += now;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let lingering = this.lingering.get_or_insert_default();
        let is_between = this.place == Place::Head && !this.head.has_begun && this.head.line.is_empty();
        match is_between || this.switched.load(Ordering::Acquire) {
            true => Poll::Ready(Ok(())),
            false => lingering.poll(&mut this.stream, cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    use super::*;

    /// What comes out of these bytes, read in pieces of these sizes, one after the other and from the first again.
    fn read(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut guarded = Guarded::new(bytes, Arc::default());
        let (mut out, mut piece) = (Vec::new(), [0; 4096]);
        for size in sizes.iter().cycle() {
            match guarded.read(&mut piece[..*size]).now_or_never().unwrap().unwrap() {
                0 => break,
                read => out.extend(&piece[..read]),
            }
        }
        out
    }

    /// A request of any framing. Its body is of bytes that stand in heads, so that a place that was lost is noticed.
    fn request() -> impl Strategy<Value = Vec<u8>> {
        let text = "[ -~]{0,90}";
        let body = proptest::collection::vec(
            proptest::sample::select(b"\r\n\0 :0aContent-Length: 5".to_vec()),
            0..80,
        );
        let header =
            ("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,80}", text).prop_filter("it is about a body", |(name, _)| {
                !["content-length", "transfer-encoding"].iter().any(|other| name.eq_ignore_ascii_case(other))
            });
        let headers = proptest::collection::vec(header, 0..5);
        let chunks = proptest::collection::vec((body.clone(), "(;[a-z]{1,9}(=\"?[ -~]{0,70})?)?"), 0..5);
        let head = move |headers: Vec<(String, String)>, framing: String| {
            let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("POST /x HTTP/1.1\r\n{lines}{framing}\r\n").into_bytes()
        };
        let whole = (headers.clone(), body, "(\r\n){0,2}").prop_map(move |(headers, body, before)| {
            let framing = format!("CONTENT-LENGTH: {}\r\n", body.len());
            [before.into_bytes(), head(headers, framing), body].concat()
        });
        let none = headers.clone().prop_map(move |headers| head(headers, String::new()));
        let chunked = (headers.clone(), chunks, headers).prop_map(move |(headers, chunks, trailers)| {
            let mut request = head(headers, "Transfer-Encoding:chunked \r\n".to_owned());
            for (chunk, extension) in chunks.iter().filter(|(chunk, _)| !chunk.is_empty()) {
                request.extend(format!("{:X}{extension}\r\n", chunk.len()).bytes());
                request.extend(chunk);
                request.extend(b"\r\n");
            }
            let trailers: String =
                trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            request.extend(format!("0\r\n{trailers}\r\n").bytes());
            request
        });
        prop_oneof![whole, none, chunked]
    }

    fn pipeline() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(request(), 1..6).prop_map(|requests| requests.concat())
    }

    fn sizes() -> impl Strategy<Value = Vec<usize>> {
        proptest::collection::vec(1_usize..100, 1..20)
    }

    proptest! {
        #[test]
        fn what_is_right_passes_as_it_is(bytes in pipeline(), sizes in sizes()) {
            prop_assert_eq!(read(&bytes, &sizes), bytes);
        }

        /// Wherever a mistake is, what stands before it passes, and nothing behind it, however the bytes come.
        #[test]
        fn a_mistake_is_one_however_it_comes(
            mut bytes in pipeline(), sizes in sizes(),
            (at, byte) in (any::<prop::sample::Index>(), prop::sample::select(b"\r\n\0 :0;f".to_vec())),
        ) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let whole = read(&bytes, &[4096]);
            prop_assert_eq!(&read(&bytes, &sizes), &whole);
            let passed = whole.strip_suffix(REFUSED).filter(|_| whole != bytes).unwrap_or(&whole);
            prop_assert!(bytes.starts_with(passed));
        }
    }
}
