//! Processes that take from one bucket, told line by line.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;

use super::callers::tally_size;
use super::limiter::fresh_salt;
use crate::case::{Accuracy, Side};
use crate::part::Part;
use crate::part::takes::{Answer, Order};

/// All at once.
pub(crate) struct Processes {
    parts: Vec<Part>,
    per_second: Cell<f64>,
}

impl Processes {
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        Self { parts, per_second: Cell::new(0.0) }
    }

    fn all(&self, order: &Order) -> Result<Vec<Answer>> {
        self.parts.iter().try_for_each(|part| part.tell(order))?;
        self.parts.iter().map(Part::answer).collect()
    }
}

impl Side for Processes {
    fn run(&self, time: Duration) -> Result<Vec<f64>> {
        let order = Order { salt: 0, burst: None, milliseconds: time.as_millis() as u64, requests: 0 };
        let per_second = self.all(&order)?.iter().map(|answer| answer.per_second).sum();
        self.per_second.set(per_second);
        Ok(vec![per_second])
    }

    fn accuracy(&self) -> Result<Option<Accuracy>> {
        let (requests, burst) = tally_size(self.per_second.get(), 1);
        let each = requests / self.parts.len() as u64;
        let order = Order { salt: fresh_salt(), burst: Some(burst), milliseconds: 0, requests: each };
        let admitted = self.all(&order)?.iter().map(|answer| answer.granted).sum();
        Ok(Some(Accuracy { admitted, allowed: burst.min(each * self.parts.len() as u64) }))
    }
}
