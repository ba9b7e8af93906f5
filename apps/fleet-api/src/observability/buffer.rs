//! The hand-over from requests to the consumer that writes telemetry out: bounded in records and in bytes.
//!
//! A batch in the buffer holds a permit for each of its records and bytes, and gives them back when it is written. So
//! what waits is bounded whatever the sink does, and a sink that fails fills the buffer, which clients see as 503.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::Rendered;
use crate::metrics::Metrics;

/// The most batches that are written at once.
const BATCHES_AT_ONCE: usize = 64;

/// How long the consumer waits before it tries a failed write again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Where telemetry ends up.
pub trait TelemetrySink: Send + 'static {
    /// Appends whole lines; all of them or, on an error, none.
    ///
    /// # Errors
    /// If they could not be written. They are tried again.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
}

/// The buffer has no room for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// Now. There is room again when what waits is written.
    #[error("the telemetry buffer is full")]
    Full,
    /// Ever: the batch is larger than the whole buffer.
    #[error(
        "the batch takes {bytes} bytes in the telemetry buffer, which holds {max_bytes}; send smaller batches"
    )]
    NeverFits {
        /// The size of the batch, with what is written of its origin beside each record.
        bytes: usize,
        /// The size of the buffer.
        max_bytes: usize,
    },
}

/// Where requests put batches. Clones share the buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    records: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Waiting>, // Bounded by the permits.
    metrics: Metrics,
    max_bytes: usize,
}

/// Takes batches out of the buffer and writes them.
#[derive(Debug)]
pub struct Consumer {
    receiver: mpsc::UnboundedReceiver<Waiting>,
    bytes: Arc<Semaphore>,
    metrics: Metrics,
    max_bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    batch: Rendered,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Buffer {
    /// A buffer for at most so many records and bytes, and what empties it.
    pub fn new(max_records: usize, max_bytes: usize, metrics: Metrics) -> (Self, Consumer) {
        let (records, bytes) = (Semaphore::new(max_records), Semaphore::new(max_bytes));
        let (records, bytes) = (Arc::new(records), Arc::new(bytes));
        let (sender, receiver) = mpsc::unbounded_channel();
        let consumer = Consumer { receiver, bytes: bytes.clone(), metrics: metrics.clone(), max_bytes };
        (Self { records, bytes, sender, metrics, max_bytes }, consumer)
    }

    /// Hands a batch over, if there is room for all of it.
    ///
    /// # Errors
    /// [`BufferError`]; it is full also when the consumer is gone.
    pub fn push(&self, batch: Rendered) -> Result<(), BufferError> {
        let (bytes, max_bytes) = (batch.lines.len(), self.max_bytes);
        if bytes > max_bytes {
            return Err(BufferError::NeverFits { bytes, max_bytes });
        }
        let permits = |semaphore: &Arc<Semaphore>, count: usize| {
            let count = u32::try_from(count).map_err(|_| BufferError::Full)?;
            semaphore.clone().try_acquire_many_owned(count).map_err(|_| BufferError::Full)
        };
        let permits = [permits(&self.records, batch.records)?, permits(&self.bytes, bytes)?];
        self.sender.send(Waiting { batch, _permits: permits }).map_err(|_| BufferError::Full)?;
        self.metrics.set_buffered_bytes(self.max_bytes - self.bytes.available_permits());
        Ok(())
    }
}

impl Consumer {
    /// Writes batches until every [`Buffer`] is dropped and all is written, or `give_up` is cancelled; what is then not
    /// written is lost, counted and logged.
    pub async fn run(mut self, sink: impl TelemetrySink, give_up: CancellationToken) {
        let mut sink = Some(sink);
        let mut waiting = Vec::with_capacity(BATCHES_AT_ONCE);
        while self.receiver.recv_many(&mut waiting, BATCHES_AT_ONCE).await > 0 {
            let lines: Arc<[u8]> = waiting.iter().flat_map(|one| &one.batch.lines).copied().collect();
            if !write(&mut sink, &lines, &give_up).await {
                let mut lost: usize = waiting.iter().map(|one| one.batch.records).sum();
                while let Ok(one) = self.receiver.try_recv() {
                    lost += one.batch.records;
                }
                self.metrics.count_dropped(lost);
                tracing::error!(records = lost, "telemetry could not be written and is lost");
                return;
            }
            waiting.clear();
            self.metrics.set_buffered_bytes(self.max_bytes - self.bytes.available_permits());
        }
    }
}

/// Writes lines, trying again until it works; false if `give_up` was cancelled first.
async fn write<S: TelemetrySink>(
    sink: &mut Option<S>,
    lines: &Arc<[u8]>,
    give_up: &CancellationToken,
) -> bool {
    let mut retry = tokio::time::interval(RETRY_INTERVAL);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        retry.tick().await; // At once the first time.
        let Some(mut taken) = sink.take() else { return false }; // A write panicked.
        let lines = lines.clone();
        let written = tokio::task::spawn_blocking(move || {
            let written = taken.append(&lines);
            (taken, written)
        });
        let cause = match written.await {
            Ok((returned, written)) => {
                *sink = Some(returned);
                match written {
                    Ok(()) => return true,
                    Err(error) => error.to_string(),
                }
            }
            Err(panicked) => panicked.to_string(),
        };
        tracing::error!(cause, "telemetry could not be written; it waits");
        if give_up.is_cancelled() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink {
        written: Arc<Mutex<Vec<u8>>>,
        failures_left: Arc<Mutex<usize>>,
    }

    impl TelemetrySink for Sink {
        fn append(&mut self, lines: &[u8]) -> io::Result<()> {
            let mut failures = self.failures_left.lock().unwrap();
            if *failures > 0 {
                *failures -= 1;
                return Err(io::Error::other("the disk is full"));
            }
            self.written.lock().unwrap().extend_from_slice(lines);
            Ok(())
        }
    }

    fn batch(line: &str) -> Rendered {
        Rendered { lines: line.into(), records: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_buffer_refuses_and_has_room_again_when_it_is_written() {
        let (buffer, consumer) = Buffer::new(2, 10, Metrics::default());
        buffer.push(batch("12345")).unwrap();
        assert_eq!(buffer.push(batch("123456")), Err(BufferError::Full), "by bytes");
        buffer.push(batch("1234")).unwrap();
        assert_eq!(buffer.push(batch("1")), Err(BufferError::Full), "by records");
        // Such a batch was told to come again, for ever.
        let never = BufferError::NeverFits { bytes: 11, max_bytes: 10 };
        assert_eq!(buffer.push(batch("12345678901")), Err(never));

        let sink = Sink { failures_left: Arc::new(Mutex::new(3)), ..Sink::default() };
        let consuming = tokio::spawn(consumer.run(sink.clone(), CancellationToken::new()));
        let room = buffer.bytes.clone().acquire_many_owned(10).await.unwrap();
        drop(room);
        buffer.push(batch("678")).unwrap();
        drop(buffer);
        consuming.await.unwrap();
        assert_eq!(*sink.written.lock().unwrap(), b"123451234678");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sink_that_never_works_is_given_up_when_told_to() {
        let (buffer, consumer) = Buffer::new(2, 10, Metrics::default());
        buffer.push(batch("1")).unwrap();
        let sink = Sink { failures_left: Arc::new(Mutex::new(usize::MAX)), ..Sink::default() };
        let give_up = CancellationToken::new();
        let consuming = tokio::spawn(consumer.run(sink, give_up.clone()));
        give_up.cancel();
        consuming.await.unwrap();
        assert_eq!(buffer.push(batch("1")), Err(BufferError::Full), "nobody would write it");
    }
}
