//! The end of a connection whose client is still sending.
//!
//! An answer may come before its request was read: a refusal of a large upload does. A connection that is closed with bytes
//! unread is reset, and the reset takes away what the client has not read yet of the answer: it would see a broken
//! connection in the place of the refusal (RFC 9112, section 9.6).

use std::future::{Future, Pending, pending};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Timeout, timeout};

/// How long a client may go on sending: time enough to read the answer and to stop.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// How much is read at once, in bytes.
const PIECE: usize = 8 << 10;

/// Reads what still comes, and forgets it.
#[derive(Debug, Default)]
pub(crate) struct Lingering(Option<Pin<Box<Timeout<Pending<()>>>>>);

impl Lingering {
    /// Ready when the client has ended as well, or when its time is over.
    pub(crate) fn poll<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let time = self.0.get_or_insert_with(|| Box::pin(timeout(LINGER_TIME, pending())));
        while time.as_mut().poll(cx).is_pending() {
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}
