//! Bounds the log. A store that is away is an error of each request, and a client that goes on asking would
//! fill the disk: it was some three thousand lines a second.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use admit::Clock;
use prometheus_client::metrics::counter::Counter;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// How many lines of one kind a second has. Enough for who looks for the id of a request in the log while
/// little goes on.
const LINES_A_SECOND: u32 = 100;

/// How many lines were left out, for a metric. The log is the process's, and so is this.
static LEFT_OUT: LazyLock<Counter> = LazyLock::new(Counter::default);

/// How many lines were left out. Clones share the number.
pub(crate) fn left_out() -> Counter {
    LEFT_OUT.clone()
}

/// Lets the first lines of each second pass, of each place in the program that logs.
#[derive(Debug)]
pub(super) struct Flood<C> {
    clock: C,
    /// For each place, the second of its last line, and how many it has. There are as many as the program has
    /// places.
    seconds: Mutex<HashMap<Identifier, (i64, u32)>>,
}

impl<C: Clock> Flood<C> {
    pub(super) fn new(clock: C) -> Self {
        Self { clock, seconds: Mutex::default() }
    }

    fn passes(&self, place: Identifier) -> bool {
        let second = self.clock.now().unix_micros() / 1_000_000;
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, lines) = seconds.entry(place).or_insert((second, 0));
        if *last != second {
            (*last, *lines) = (second, 0);
        }
        *lines = lines.saturating_add(1);
        *lines <= LINES_A_SECOND
    }
}

impl<S, C: Clock + 'static> Filter<S> for Flood<C> {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let passes = self.passes(event.metadata().callsite());
        if !passes {
            LEFT_OUT.inc();
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use admit::{ManualClock, Timestamp};
    use tracing_subscriber::layer::{Layer, SubscriberExt};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn count(&self, what: &str) -> usize {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().matches(what).count()
        }
    }

    #[test]
    fn what_comes_over_and_over_is_logged_so_often_a_second_and_the_rest_counted() {
        let (clock, written) = (ManualClock::at(Timestamp::MIN), Written::default());
        let writer = written.clone();
        let log = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_filter(Flood::new(clock.clone()));
        let before = left_out().get();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            for _ in 0..2 {
                for _ in 0..1_000 {
                    tracing::error!("the store is away");
                }
                tracing::error!("something else");
                clock.advance(Duration::from_secs(1));
            }
        });
        assert_eq!((written.count("the store is away"), written.count("something else")), (200, 2));
        assert_eq!(left_out().get() - before, 1_800);
    }
}
