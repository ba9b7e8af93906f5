//! How a take goes between what is held here and the store.
//!
//! What is held covers all of a take, or the store is asked for all of it. So nothing is set aside while the store takes its
//! time, and a refusal with its wait is the store's own.

use admit::{
    Charge, ChargeError, Cost, Decision, Grant, Line, Now, Prepared, Take, TakeError, Timestamp, Unavailable,
    UnavailableKind,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::asking::Asking;
use super::holding::{Begun, Effort, Moment, Spent};
use super::latch::{Latch, PATIENCE};
use super::{Leased, LeasedScope, Lessor};

/// How often a caller waits for a slice that others have used up when its turn comes, if it has [`PATIENCE`] for so long; then it
/// asks for itself alone. The last wait may be as long as one take at the store, unless that is the task of another runtime.
const MAX_WAITS: u32 = 8;

/// A take that the store is asked for.
struct Request<S> {
    leased: Leased<S>,
    charges: Vec<Charge>,
    take: Take,
    now: Now,
    /// What is asked for of each line, unless nothing can be held of it.
    lines: Vec<Option<Asking>>,
}

/// What was debited for a caller that has not heard of it. Dropped, it goes where a refund of it would go.
struct Unheard<S: Lessor>(Option<(Leased<S>, Vec<Charge>)>);

impl<S: Lessor> Leased<S> {
    /// Grants a charge from what is held; nothing if that does not cover it.
    pub(super) fn spend(
        &self,
        leased: &LeasedScope,
        charge: &Charge,
        now: Now,
    ) -> Result<Option<Decision>, ChargeError> {
        self.store.rules().check(charge)?;
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

    /// Grants from what is held, or asks the store.
    pub(super) async fn ask(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.store.rules().prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let runtime = Handle::try_current();
        // Who asks the store each time has no use for a slice; and without a runtime nobody would see to one that its caller
        // has left.
        let can_spend = take.lines().iter().all(|line| self.leased(&line.scope).is_some());
        let can_slice = can_spend && runtime.is_ok();
        let (began, mut waits) = (self.clock.now(), 0);
        let lines = loop {
            let moment = self.moment(now);
            if can_spend && let Some(spent) = self.spend_all(&take, moment) {
                let at = spent.iter().map(|spent| spent.at).max();
                let left = charges.iter().map(|charge| Some(spent[line_of(&take, charge)?].left)).collect();
                return Ok(Decision::Granted(Grant { at, left }));
            }
            let patience = PATIENCE.saturating_sub(self.clock.now().since(began));
            let effort = match can_slice {
                true if waits < MAX_WAITS && !patience.is_zero() => Effort::Wait,
                true => Effort::Ask,
                false => Effort::None,
            };
            match self.begin(&take, moment, effort) {
                Ok(lines) => break lines,
                Err(flight) => flight.opened(moment.at, patience).await, // Nothing is set aside meanwhile: no two wait for each other.
            }
            waits += 1;
        };
        let request = Request { leased: self.clone(), charges: charges.to_vec(), take, now, lines };
        let (decision, unheard) = match runtime {
            // If the caller goes away, the answer still comes, and somebody sees to what was debited.
            Ok(runtime) => {
                let (reply, answer) = oneshot::channel();
                let run = async move {
                    // Who has gone before it was sent wants nothing, and whoever waits for its slice asks instead.
                    if !reply.is_closed() {
                        drop(reply.send(request.run().await));
                    }
                };
                runtime.spawn(run.in_current_span());
                let broken = |cause| Unavailable::new("leased", cause).of_kind(UnavailableKind::Broken);
                answer.await.map_err(broken)??
            }
            Err(_) => request.run().await?,
        };
        unheard.heard();
        Ok(decision)
    }

    /// Spends what is held of all lines; nothing if that does not cover one of them.
    fn spend_all(&self, take: &Take, moment: Moment) -> Option<Vec<Spent>> {
        let mut spent = Vec::with_capacity(take.lines().len());
        for line in take.lines() {
            let leased = self.leased(&line.scope);
            let spend = |leased: &LeasedScope| {
                leased.table.with(&line.key, |holding| holding.spend(line.cost.tokens(), line.budget, moment))
            };
            match leased.and_then(spend).flatten() {
                Some(now) => spent.push(now),
                None => {
                    self.hold_again(&take.lines()[..spent.len()]);
                    return None;
                }
            }
        }
        Some(spent)
    }

    /// Tells what to ask the store for of each line; or what to wait for, with nothing begun.
    fn begin(&self, take: &Take, moment: Moment, effort: Effort) -> Result<Vec<Option<Asking>>, Latch> {
        let mut lines = Vec::with_capacity(take.lines().len());
        for line in take.lines() {
            let Some(leased) = self.leased(&line.scope) else {
                lines.push(None);
                continue;
            };
            let most = leased.share.of(line.budget);
            let begun = leased.table.with_new(&line.key, line.budget, moment, |holding| {
                holding.begin(line.cost.tokens(), line.budget, moment, most, effort)
            });
            lines.push(match begun {
                Some(Begun::Ask(ask)) => Some(Asking::new(self.place(leased, line), ask)),
                Some(Begun::Wait(flight)) => return Err(flight),
                None => None, // There is no room to hold anything of it.
            });
        }
        Ok(lines)
    }

    /// What [`Leased::take`] would decide. Changes nothing.
    pub(super) async fn look(&self, charges: &[Charge], now: Now) -> Result<Decision, TakeError> {
        let take = match self.store.rules().prepare(charges)? {
            Prepared::Decided(decision) => return Ok(decision),
            Prepared::Ask(take) => take,
        };
        let moment = self.moment(now);
        let held: Vec<(f64, f64)> = take.lines().iter().map(|line| self.held_of(line, moment)).collect();
        if take.lines().iter().zip(&held).all(|(line, (held, _))| *held >= line.cost.tokens()) {
            let left = charges.iter().map(|charge| Some(held[line_of(&take, charge)?].1)).collect();
            return Ok(Decision::Granted(Grant { at: Some(moment.at), left }));
        }
        let mut decision = self.store.peek(charges, now).await?;
        if let Decision::Granted(Grant { left, .. }) = &mut decision {
            for (left, charge) in left.iter_mut().zip(charges) {
                if let (Some(left), Some(line)) = (left, line_of(&take, charge)) {
                    *left = (*left + held[line].0).min(charge.budget.burst().tokens());
                }
            }
        }
        Ok(decision)
    }

    /// What is held of a line's bucket, and what there is as far as it is known here.
    fn held_of(&self, line: &Line, moment: Moment) -> (f64, f64) {
        let look =
            |leased: &LeasedScope| leased.table.with(&line.key, |holding| holding.look(line.budget, moment));
        self.leased(&line.scope).and_then(look).unwrap_or_default()
    }

    /// Gives back to what is held here; only what is not leased reaches the store.
    pub(super) async fn give_back(&self, charges: &[Charge]) -> Result<(), TakeError> {
        let take = self.store.rules().prepare_refund(charges)?;
        let others = self.not_leased(&take);
        if !others.is_empty() {
            self.store.refund(&others).await?;
        }
        self.hold_again(take.lines());
        Ok(())
    }

    /// Takes back what was spent of leased buckets.
    fn hold_again(&self, lines: &[Line]) {
        for line in lines {
            if let Some(leased) = self.leased(&line.scope) {
                self.place(leased, line).give(line.cost.tokens().min(line.budget.burst().tokens()));
            }
        }
    }

    fn not_leased(&self, take: &Take) -> Vec<Charge> {
        let others = take.lines().iter().filter(|line| self.leased(&line.scope).is_none());
        let charge = |Line { scope, key, cost, budget }: &Line| Charge {
            scope: scope.clone(),
            key: *key,
            cost: *cost,
            budget: *budget,
        };
        others.map(charge).collect()
    }
}

impl<S: Lessor> Request<S> {
    async fn run(mut self) -> Result<(Decision, Unheard<S>), TakeError> {
        self.lines.iter_mut().flatten().for_each(Asking::send);
        let mut decision = self.leased.store.take_for_good(&self.asked(), self.now).await?;
        if self.is_refused_for_a_slice(&decision) {
            // The costs alone may fit; and if not, their waits are the true ones.
            decision = self.leased.store.take_for_good(&self.charges, self.now).await?;
            self.is_refused_for_a_slice(&decision);
        }
        let Decision::Granted(grant) = &mut decision else { return Ok((decision, Unheard(None))) };
        let at = grant.at.unwrap_or(Timestamp::MIN); // The store was asked for something, and tells when.
        for (charge, left) in self.charges.iter().zip(grant.left.iter_mut()) {
            let asking = line_of(&self.take, charge).and_then(|line| self.lines[line].as_mut());
            if let (Some(asking), Some(left)) = (asking, left) {
                *left = asking.landed(*left, at);
            }
        }
        Ok((decision, Unheard(Some((self.leased, self.charges)))))
    }

    /// The charges, with the slices.
    fn asked(&self) -> Vec<Charge> {
        let mut asked = self.charges.clone();
        for (line, asking) in self.lines.iter().enumerate() {
            let rest = asking.as_ref().map_or(Cost::ZERO, Asking::rest);
            let is_of_line = |charge: &&mut Charge| line_of(&self.take, charge) == Some(line);
            if !rest.is_zero()
                && let Some(charge) = asked.iter_mut().find(is_of_line)
            {
                charge.cost = charge.cost.saturating_add(rest);
            }
        }
        asked
    }

    /// Learns from a refusal. From then on the store is asked for the costs alone.
    fn is_refused_for_a_slice(&mut self, decision: &Decision) -> bool {
        let mut for_a_slice = false;
        if let Decision::Refused(refusal) = decision {
            for (charge, standing) in self.charges.iter().zip(refusal.standings.iter()) {
                let asking = line_of(&self.take, charge).and_then(|line| self.lines[line].as_mut());
                for_a_slice |= asking.is_some_and(|asking| asking.refused(standing));
            }
        }
        for_a_slice
    }
}

impl<S: Lessor> Unheard<S> {
    /// The caller has its answer.
    fn heard(mut self) {
        self.0 = None;
    }
}

impl<S: Lessor> Drop for Unheard<S> {
    fn drop(&mut self) {
        let Some((leased, charges)) = self.0.take() else { return };
        let Ok(take) = leased.store.rules().prepare_refund(&charges) else { return };
        leased.hold_again(take.lines());
        let others = leased.not_leased(&take);
        // Without a runtime they stay debited.
        if let (false, Ok(runtime)) = (others.is_empty(), Handle::try_current()) {
            runtime.spawn(async move {
                if let Err(cause) = leased.store.refund(&others).await {
                    tracing::warn!(error = %admit::Causes(&cause), "what a take debited for nobody was not given back");
                }
            });
        }
    }
}

/// The line that a charge is part of; none for a cost of zero.
fn line_of(take: &Take, charge: &Charge) -> Option<usize> {
    let wanted = (&charge.scope, &charge.key);
    let line = || take.lines().binary_search_by(|line| (&line.scope, &line.key).cmp(&wanted)).ok();
    if charge.cost.is_zero() { None } else { line() }
}
