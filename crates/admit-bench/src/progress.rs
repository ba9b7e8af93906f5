//! How long it takes.

use std::time::{Duration, Instant};

/// Cases that are measured one after another.
pub(crate) struct Progress {
    started: Instant,
    cases: usize,
}

impl Progress {
    #[allow(clippy::disallowed_methods)] // A bench reads the clock.
    pub(crate) fn start(cases: usize) -> Self {
        Self { started: Instant::now(), cases }
    }

    /// What has been done, and how long the rest takes if a case takes as long as those before it.
    pub(crate) fn after(&self, done: usize) -> String {
        told(self.started.elapsed(), done, self.cases)
    }
}

fn told(elapsed: Duration, done: usize, cases: usize) -> String {
    let minutes = |time: Duration| format!("{:.1} min", time.as_secs_f64() / 60.0);
    let so_far = format!("{done} of {cases} cases in {}", minutes(elapsed));
    if done == 0 || done == cases {
        return so_far;
    }
    let left = elapsed.mul_f64((cases - done) as f64 / done as f64);
    format!("{so_far}, about {} left", minutes(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_at_the_pace_of_what_is_done() {
        let after = |done| told(Duration::from_secs(60), done, 4);
        assert_eq!(after(0), "0 of 4 cases in 1.0 min");
        assert_eq!(after(1), "1 of 4 cases in 1.0 min, about 3.0 min left");
        assert_eq!(after(4), "4 of 4 cases in 1.0 min");
    }
}
