//! Tells HTTP/1.1 from HTTP/2 by a connection's first bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

/// With what each connection of HTTP/2 begins (RFC 9113, section 3.4). No request of HTTP/1.1 does.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Reads until it is known which protocol the client speaks: often no more than one byte. Has no time limit of its own.
///
/// # Errors
/// If the connection breaks off, or ends before it is known.
pub(crate) async fn detect<S: AsyncRead + Unpin>(
    mut stream: S,
    permit: OwnedSemaphorePermit,
) -> io::Result<(Protocol, Rewound<S>)> {
    let (mut read, mut length) = ([0; PREFACE.len()], 0);
    let protocol = loop {
        match stream.read(&mut read[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => length += more,
        }
        if read[..length] != PREFACE[..length] {
            break Protocol::Http1;
        }
        if length == PREFACE.len() {
            break Protocol::Http2;
        }
    };
    Ok((protocol, Rewound { read, given: 0, length, stream, _permit: permit }))
}

/// A stream whose first bytes were read, and are read again. It counts as a connection until it is dropped, after an
/// upgrade too.
#[derive(Debug)]
pub(crate) struct Rewound<S> {
    read: [u8; PREFACE.len()],
    given: usize,
    length: usize,
    stream: S,
    _permit: OwnedSemaphorePermit,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given == self.length {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let now = buffer.remaining().min(self.length - self.given);
        buffer.put_slice(&self.read[self.given..][..now]);
        self.given += now;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn no_byte_is_lost_whichever_it_is() {
        let permit = Arc::new(Semaphore::new(1));
        for (sent, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Protocol::Http1),
            (b"P", Protocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSX", Protocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand more", Protocol::Http2),
        ] {
            let Ok((protocol, mut rewound)) =
                detect(sent, permit.clone().acquire_owned().await.unwrap()).await
            else {
                assert_eq!(sent, b"P", "it ends before it is known");
                continue;
            };
            let mut read = Vec::new();
            rewound.read_to_end(&mut read).await.unwrap();
            assert_eq!((protocol, &read[..]), (expected, sent));
        }
    }
}
