//! How a take goes between what is held here and the store.

use admit::{
    BudgetStore, Charge, ChargeError, Cost, Decision, Grant, Line, Now, Prepared, Refusal, Standing, Take,
    TakeError, Timestamp, Unavailable, UnavailableKind,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::decision::{granted, refused};
use super::holding::{Begun, Moment};
use super::latch::Latch;
use super::reserved::Reserved;
use super::{Leased, LeasedScope};

/// How often a caller waits for a slice that others have used up when its turn comes; then it asks for itself alone. Each wait
/// is as long as one take at the store at the most, and none follows one that had no answer.
const MAX_WAITS: u32 = 8;

/// A take at the store, and what is set aside for it until it is decided.
struct Request<S> {
    store: S,
    now: Now,
    /// For each line what is set aside, if its scope is leased.
    lines: Vec<Option<Reserved>>,
    /// What the store is asked for, in the order of the lines that need it.
    asked: Vec<Charge>,
}

/// What a take at the store came to.
struct Answer {
    decision: Decision,
    lines: Vec<Option<Reserved>>,
}

impl<S: BudgetStore> Leased<S> {
    /// Grants a charge from what is held; nothing if that does not cover it.
    pub(super) fn spend(
        &self,
        leased: &LeasedScope,
        charge: &Charge,
        now: Now,
    ) -> Result<Option<Decision>, ChargeError> {
        self.rules_of_store().check(charge)?;
        let (cost, budget) = (charge.cost.tokens(), charge.budget);
        if charge.cost.is_zero() || cost > budget.burst().tokens() {
            return Ok(None); // It needs no bucket.
        }
        let moment = self.moment(now);
        let spent = leased.table.with(&charge.key, |holding| holding.spend(cost, budget, moment)).flatten();
        Ok(spent.map(|spent| {
            let left = std::iter::once(Some(spent.left)).collect();
            Decision::Granted(Grant { at: Some(spent.at), left })
        }))
    }

    fn rules_of_store(&self) -> &admit::Rules {
        self.store.rules()
    }

    /// Sets aside what is held, and asks the store for what is wanting.
    pub(super) async fn ask(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.rules_of_store().prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let mut waits = 0;
        let (lines, moment) = loop {
            let moment = self.moment(now);
            match self.reserve(&take, moment, waits < MAX_WAITS) {
                Ok(lines) => break (lines, moment),
                Err(flight) => flight.opened().await, // Nothing is set aside meanwhile: no two wait for each other.
            }
            waits += 1;
        };
        let wanting = |(line, reserved): (&Line, &Option<Reserved>)| match reserved {
            None => Some(charge_of(line, line.cost.tokens())),
            Some(reserved) => Some(charge_of(line, reserved.amount()?)),
        };
        let asked: Vec<Charge> = take.lines().iter().zip(&lines).filter_map(wanting).collect();
        let is_slice = lines.iter().flatten().any(Reserved::is_slice);
        let request = Request { store: self.store.clone(), now, lines, asked };
        if request.asked.is_empty() {
            let decision = granted(charges, &take, Some(moment.at), |line| request.left_here(line));
            keep(request.lines);
            return Ok(decision);
        }
        let answer = match Handle::try_current() {
            // A caller that goes away leaves the slice to the others.
            Ok(runtime) if is_slice => {
                let (reply, answer) = oneshot::channel();
                runtime.spawn(
                    async move { drop(reply.send(request.run().await)) } // Unread, it is put back.
                        .in_current_span(),
                );
                let broken = |cause| Unavailable::new("leased", cause).of_kind(UnavailableKind::Broken);
                answer.await.map_err(broken)??
            }
            _ => request.run().await?,
        };
        Ok(answer.told(charges, &take))
    }

    /// Sets aside what is held, line by line; or tells what to wait for, with nothing set aside.
    fn reserve(&self, take: &Take, moment: Moment, may_wait: bool) -> Result<Vec<Option<Reserved>>, Latch> {
        let mut lines = Vec::with_capacity(take.lines().len());
        for line in take.lines() {
            let Some(leased) = self.leased(&line.scope) else {
                lines.push(None);
                continue;
            };
            let (cost, most) = (line.cost.tokens(), leased.share.of(line.budget));
            let begun = leased.table.with_new(&line.key, line.budget, moment, |holding| {
                holding.begin(cost, line.budget, moment, most, may_wait)
            });
            let place = || self.place(leased, line);
            lines.push(match begun {
                Some(Begun::Spent(spent)) => Some(Reserved::spent(place(), cost, spent.left)),
                Some(Begun::Ask(ask)) => Some(Reserved::asking(place(), ask)),
                Some(Begun::Wait(flight)) => return Err(flight),
                None => None, // There is no room to hold anything of it.
            });
        }
        Ok(lines)
    }

    /// What [`Leased::take`] would decide. Changes nothing.
    pub(super) async fn look(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.rules_of_store().prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let moment = self.moment(now);
        let held: Vec<(f64, f64)> = take.lines().iter().map(|line| self.held_of(line, moment)).collect();
        let is_covered = |i: usize| held[i].0 >= take.lines()[i].cost.tokens();
        let wanting: Vec<usize> = (0..held.len()).filter(|&i| !is_covered(i)).collect();
        let asked = wanting.iter().map(|&i| {
            let line = &take.lines()[i];
            charge_of(line, line.cost.tokens() - held[i].0)
        });
        let asked: Vec<Charge> = asked.collect();
        let place = |line: usize| wanting.binary_search(&line).ok();
        let whole = |line: usize, in_store: f64| {
            (in_store + held[line].0).min(take.lines()[line].budget.burst().tokens())
        };
        if asked.is_empty() {
            return Ok(granted(charges, &take, Some(moment.at), |line| Some(held[line].1)));
        }
        Ok(match self.store.peek(&asked, now).await? {
            Decision::Granted(Grant { at, left }) => granted(charges, &take, at, |line| match place(line) {
                Some(asked) => Some(whole(line, (*left.get(asked)?)?)),
                None => Some(held[line].1),
            }),
            Decision::Refused(Refusal { at, standings }) => {
                refused(charges, &take, at, |line| match place(line).and_then(|asked| standings.get(asked)) {
                    Some(&Standing { level, wait }) => {
                        Standing { level: level.map(|level| whole(line, level)), wait }
                    }
                    None => Standing { level: Some(held[line].1), wait: None },
                })
            }
        })
    }

    /// What is held of a line's bucket, and what there is as far as it is known here.
    fn held_of(&self, line: &Line, moment: Moment) -> (f64, f64) {
        let look =
            |leased: &LeasedScope| leased.table.with(&line.key, |holding| holding.look(line.budget, moment));
        self.leased(&line.scope).and_then(look).unwrap_or_default()
    }

    /// Gives back to what is held here; only what is not leased reaches the store.
    pub(super) async fn give_back(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.rules_of_store().prepare_refund(charges)?;
        let is_leased = |line: &&Line| self.leased(&line.scope).is_some();
        let others: Vec<Charge> = take
            .lines()
            .iter()
            .filter(|line| !is_leased(line))
            .map(|line| charge_of(line, line.cost.tokens()))
            .collect();
        if !others.is_empty() {
            self.store.refund(&others).await?;
        }
        for line in take.lines() {
            if let Some(leased) = self.leased(&line.scope) {
                self.place(leased, line).give(line.cost.tokens().min(line.budget.burst().tokens()));
            }
        }
        Ok(())
    }
}

impl<S: BudgetStore> Request<S> {
    async fn run(mut self) -> Result<Answer, TakeError> {
        self.lines.iter_mut().flatten().for_each(Reserved::send);
        let mut decision = self.store.take(&self.asked, self.now).await?;
        if let Decision::Refused(refusal) = &decision {
            let is_slice = self.lines.iter().flatten().any(Reserved::is_slice);
            self.refused(refusal);
            if is_slice {
                decision = self.store.take(&self.asked, self.now).await?;
            }
        }
        match &decision {
            Decision::Refused(refusal) => self.refused(refusal),
            Decision::Granted(Grant { at, left }) => {
                let at = at.unwrap_or(Timestamp::MIN); // The store was asked for something, and tells when.
                for (reserved, left) in asking(&mut self.lines).zip(left.iter()) {
                    if let (Some(reserved), Some(left)) = (reserved, *left) {
                        reserved.landed(left, at);
                    }
                }
            }
        }
        Ok(Answer { decision, lines: self.lines })
    }

    /// From now on the store is asked for what is wanting and no more.
    fn refused(&mut self, refusal: &Refusal) {
        let asked = self.asked.iter_mut().zip(refusal.standings.iter());
        for (reserved, (charge, standing)) in asking(&mut self.lines).zip(asked) {
            if let Some(reserved) = reserved {
                reserved.refused(standing.level);
                charge.cost =
                    reserved.amount().and_then(|amount| Cost::new(amount).ok()).unwrap_or(charge.cost);
            }
        }
    }

    fn left_here(&self, line: usize) -> Option<f64> {
        self.lines[line].as_ref().map(Reserved::left)
    }
}

impl Answer {
    /// The decision on the charges. If it is granted, what was set aside is spent.
    fn told(self, charges: &[Charge], take: &Take) -> Decision {
        let Self { decision, lines } = self;
        // Of each line the position among those that the store was asked for.
        let mut next = 0;
        let places: Vec<Option<usize>> = lines
            .iter()
            .map(|line| {
                let is_asked = line.as_ref().is_none_or(Reserved::was_asked);
                next += usize::from(is_asked);
                is_asked.then(|| next - 1)
            })
            .collect();
        match decision {
            Decision::Granted(Grant { at, left }) => {
                let decision = granted(charges, take, at, |line| match &lines[line] {
                    Some(reserved) => Some(reserved.left()),
                    None => *left.get(places[line]?)?,
                });
                keep(lines);
                decision
            }
            Decision::Refused(Refusal { at, standings }) => refused(charges, take, at, |line| {
                let asked = places[line].and_then(|place| standings.get(place)).copied();
                match (&lines[line], asked) {
                    (None, asked) => asked.unwrap_or(Standing { level: None, wait: None }),
                    (Some(reserved), Some(Standing { level, wait })) => {
                        Standing { level: level.map(|level| reserved.level(level)), wait }
                    }
                    (Some(reserved), None) => {
                        Standing { level: Some(reserved.level(reserved.left())), wait: None }
                    }
                }
            }),
        }
    }
}

/// What is set aside for each line that the store was asked for, in their order; nothing where nothing is leased.
fn asking(lines: &mut [Option<Reserved>]) -> impl Iterator<Item = Option<&mut Reserved>> {
    lines.iter_mut().map(Option::as_mut).filter(|line| line.as_ref().is_none_or(|line| line.was_asked()))
}

fn keep(lines: Vec<Option<Reserved>>) {
    lines.into_iter().flatten().for_each(Reserved::keep);
}

fn charge_of(line: &Line, tokens: f64) -> Charge {
    let cost = Cost::new(tokens).unwrap_or(line.cost); // A difference of costs, the larger one first.
    Charge { scope: line.scope.clone(), key: line.key, cost, budget: line.budget }
}
