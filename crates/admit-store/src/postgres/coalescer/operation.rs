//! A take or a refund that waits.

use admit::{Key, Now, Take, Timestamp, Unavailable};
use tokio::sync::oneshot;

use super::super::batch::{Outcome, Want};
use crate::refusals::Stamp;

/// The fewest operations that are worth two statements at once.
const WORTH_TWO_STATEMENTS: usize = 256;

pub(in super::super) struct Operation {
    pub(super) want: Want,
    /// For a take: of when it came.
    pub(super) stamp: Option<Stamp>,
    pub(super) take: Take,
    pub(super) now: Now,
    pub(super) since: Timestamp,
    /// Whether a take stays debited if nobody waits for its answer.
    pub(super) for_good: bool,
    /// Whether it waits again, as somebody held a bucket that it gives back to.
    pub(super) again: bool,
    /// Who waits for the answer; nobody for what is given back of an abandoned take.
    pub(super) caller: Option<oneshot::Sender<Answered>>,
}

/// With the take, so that whoever finds it abandoned can give it back.
pub(super) type Answered = Result<(Outcome, Take), Unavailable>;

impl Operation {
    /// Whether it is to be done: a take that nobody waits for is not; what gives back is.
    pub(super) fn is_wanted(&self) -> bool {
        self.want == Want::GiveBack || self.is_waited_for()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| !caller.is_closed())
    }

    pub(super) fn answer(self, answer: Answered) {
        if let Some(caller) = self.caller {
            let _ = caller.send(answer); // Nobody waits: it was not done.
        }
    }
}

/// Takes half of the buckets out of a large batch, for a statement that another of the server's processes works on. Nothing if a
/// take needs several buckets, which may lie in both.
pub(super) fn other_half(batch: &mut Vec<Operation>) -> Vec<Operation> {
    let halved = batch.len() >= WORTH_TWO_STATEMENTS && batch.iter().all(|one| one.take.lines().len() == 1);
    let is_odd = |key: Key| key.as_bytes().iter().fold(0, |all, byte| all ^ byte) % 2 == 1;
    let is_other = |one: &mut Operation| one.take.lines().iter().any(|line| is_odd(line.key));
    if halved { batch.extract_if(.., is_other).collect() } else { Vec::new() }
}
