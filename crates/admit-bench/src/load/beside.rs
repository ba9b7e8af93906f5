//! What is admitted while a service is under load.

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::future::try_join_all;

use crate::case::Accuracy;

/// What every server is told to allow where accuracy is looked at.
pub(crate) const ALLOWED: u64 = 50;
/// How many callers ask at once, and how often each.
const CALLERS: usize = 128;
const TIMES: usize = 4;
/// How long the load lasts beside which they ask.
pub(crate) const LOADED: Duration = Duration::from_secs(2);

/// How many of many requests at once, each of which `ask` makes and tells whether it was admitted, were so.
///
/// # Errors
/// If one of them fails.
pub(crate) async fn admitted<A>(ask: impl Fn() -> A + Clone + Send + 'static) -> Result<u64>
where
    A: Future<Output = Result<bool>> + Send,
{
    let callers = (0..CALLERS).map(|_| {
        let ask = ask.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..TIMES {
                admitted += u64::from(ask().await?);
            }
            anyhow::Ok(admitted)
        })
    });
    try_join_all(callers).await?.into_iter().sum()
}

/// Tallies fresh buckets, one after another, for as long as the load goes on, and at least one.
///
/// # Errors
/// If the load or a tally fails.
pub(crate) fn tally_beside<T: Send>(
    load: impl FnOnce() -> Result<T> + Send,
    mut tally: impl FnMut() -> Result<Accuracy>,
) -> Result<Accuracy> {
    std::thread::scope(|scope| {
        let load = scope.spawn(load);
        let mut sum = Accuracy { admitted: 0, allowed: 0 };
        loop {
            let of_one = tally()?;
            sum.admitted += of_one.admitted;
            sum.allowed += of_one.allowed;
            if load.is_finished() {
                break;
            }
        }
        ended(load)?;
        Ok(sum)
    })
}

fn ended<T>(load: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    load.join().map_err(|_| anyhow!("the load panicked"))?
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// What was called the accuracy under load was counted when the load was over.
    #[test]
    fn it_is_counted_until_the_load_ends() {
        let (end, ended) = mpsc::channel();
        let mut tallies = 0;
        let sum = tally_beside(
            move || Ok(ended.recv()?),
            || {
                tallies += 1;
                if tallies == 3 {
                    end.send(())?;
                }
                Ok(Accuracy { admitted: 50, allowed: 50 })
            },
        );
        let Accuracy { admitted, allowed } = sum.unwrap();
        assert!(admitted >= 150 && admitted == allowed, "{admitted} of {allowed}");
    }

    #[test]
    fn a_load_that_fails_fails_the_tally() {
        let tally = || Ok(Accuracy { admitted: 0, allowed: 0 });
        assert!(tally_beside(|| -> Result<()> { Err(anyhow!("gone")) }, tally).is_err());
    }
}
