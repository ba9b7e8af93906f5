//! Property tests of asynchronous code: the case that fails is made smaller before it is told.

use std::fmt;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Random cases unless the variable `PROPTEST_CASES` says otherwise.
pub const CASES: u32 = 256;

/// The most attempts to make a failing case smaller.
const MAX_SHRINKS: u32 = 2_000;

/// Runs `check` on random values of `strategy`, the same ones each time, and panics with a small value that fails.
///
/// `check` must leave no trace that a later call could meet.
pub async fn hold<T, F>(name: &str, strategy: impl Strategy<Value = T>, check: F)
where
    T: fmt::Debug,
    F: AsyncFn(T) -> Result<(), String>,
{
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let seed = std::array::from_fn::<u8, 32, _>(|i| name.as_bytes().get(i).copied().unwrap_or(0));
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    for case in 0..cases {
        let mut tree = strategy.new_tree(&mut runner).expect("the strategies reject nothing");
        let Err(mut reason) = check(tree.current()).await else { continue };
        let mut smallest = format!("{:#?}", tree.current());
        let mut shrinks = 0;
        let mut moved = tree.simplify();
        while moved && shrinks < MAX_SHRINKS {
            shrinks += 1;
            moved = match check(tree.current()).await {
                Err(why) => {
                    (reason, smallest) = (why, format!("{:#?}", tree.current()));
                    tree.simplify()
                }
                Ok(()) => tree.complicate(),
            };
        }
        panic!("{name}: case {case}, made smaller {shrinks} times: {reason}\n{smallest}");
    }
}
