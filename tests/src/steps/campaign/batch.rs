//! Kills: one client after the other in each slot.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use rackpool_client::GlobalAddr;

use super::finding::Finding;
use super::{EACH, Ground, RUN, Slot};
use crate::steps::autopsy::Body;
use crate::steps::plan::{Key, Remains, Task, operations};
use crate::steps::stock::{Grasp, Hand, Stock};
use crate::steps::tracer::{At, Means, Target, Victim};

/// The most instructions of an operation that are executed one by one.
const LONGEST: usize = 200_000;
/// One in this number of clients killed in `alloc` is followed to the end of its operation.
const FOLLOWED: u32 = 4;

/// A client at its first mark, about to carry out its operation.
#[derive(Debug)]
pub struct Prepared {
    slot: usize,
    /// The number of its own daemon.
    rack: u16,
    operation: &'static str,
    remains: Remains,
    /// The client's objects.
    pub objects: Vec<GlobalAddr>,
    /// Bytes of the objects that the operation allocates.
    bytes: u64,
    mark: Stock,
    /// The client's file; `None` for a client that is about to open the pool.
    pub body: Option<Body>,
    /// The traced process.
    pub victim: Victim,
}

/// A client that was killed inside an operation.
pub struct Killed {
    pub(super) slot: usize,
    pub(super) operation: &'static str,
    pub(super) remains: Remains,
    /// The client's objects when the operation began.
    pub objects: Vec<GlobalAddr>,
    /// A description of the place of the kill.
    pub(super) place: String,
    /// The object that its `alloc` had in hand at the kill.
    pub hand: Hand,
    /// Objects that its file noted at the kill; the daemon reclaims all of them.
    pub(super) noted: BTreeSet<GlobalAddr>,
    /// Set if each instruction from some point to the end of its `alloc` was checked.
    pub(super) is_followed: bool,
    /// Findings from before the kill.
    pub(super) findings: Vec<Finding>,
    /// The client's file.
    pub body: Option<Body>,
}

impl fmt::Debug for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, operation, objects, place, hand, .. } = self;
        write!(f, "slot {slot}, {operation} with {objects:?}, {hand:?}, {place}")
    }
}

impl Prepared {
    /// The object that the client's `alloc` has in hand now.
    #[must_use]
    pub fn hand(&self) -> Hand {
        match &self.body {
            Some(body) if self.remains.is_in_hand() => body.stock(self.bytes).hand(&self.mark),
            _ => Hand::Empty,
        }
    }

    /// Carries `alloc` out to its end, checks before each instruction what it has in hand, and
    /// kills the client. `meanwhile` is called before each instruction.
    #[must_use]
    pub fn follow(mut self, place: &str, mut meanwhile: impl FnMut(&Self)) -> Killed {
        let mut grasp = Grasp::default();
        for step in 0..LONGEST {
            meanwhile(&self);
            let hand = self.hand();
            if let Some(wrong) = grasp.saw(hand) {
                let at = self.victim.at();
                let place = format!("{step} steps from {place}, before {at:x}");
                let wrong = Finding::Hand(format!("{wrong}: {hand:?}, {place}"));
                return self.kill_with(hand, place, vec![wrong]);
            }
            if self.victim.step() == At::Mark {
                let place = format!("at its end, followed from {place}");
                return Killed { is_followed: true, ..self.kill_at_end(grasp, place) };
            }
        }
        self.kill(format!("{LONGEST} steps from {place}"))
    }

    /// Kills a traced client that has completed its operation. The client itself reports the object
    /// that `alloc` returned: its file does not tell if the client sent more than one request.
    #[must_use]
    pub fn kill_at_end(mut self, mut grasp: Grasp, place: String) -> Killed {
        let hand = self.hand();
        if !self.remains.is_in_hand() {
            return self.kill_with(hand, place, Vec::new());
        }
        let brought = self.victim.what_it_brought();
        let wrong = self.fault_of(&mut grasp, hand, brought);
        let hand = brought.map_or(hand, Hand::Has);
        self.kill_with(hand, place, wrong.into_iter().collect())
    }

    /// A fault in what `alloc` has returned.
    fn fault_of(
        &self,
        grasp: &mut Grasp,
        hand: Hand,
        brought: Option<GlobalAddr>,
    ) -> Option<Finding> {
        let wrong = grasp.saw(hand);
        let is_noted = || {
            brought
                .is_some_and(|b| self.body.as_ref().is_some_and(|body| body.noted().contains(&b)))
        };
        let wrong = match (hand, brought) {
            _ if wrong.is_some() => wrong,
            (_, None) => Some("it says nothing of what it allocated"),
            (Hand::Empty, _) => Some("alloc has returned an object, and none is missing"),
            (Hand::Has(taken), Some(brought)) if taken != brought => Some("another one is missing"),
            _ if is_noted() => Some("what alloc has returned is noted as free"),
            _ => None,
        };
        wrong.map(|wrong| Finding::Hand(format!("{wrong}: {hand:?}, brought {brought:?}")))
    }

    /// Kills the client where it is.
    #[must_use]
    pub fn kill(self, place: String) -> Killed {
        let hand = self.hand();
        self.kill_with(hand, place, Vec::new())
    }

    fn kill_with(self, hand: Hand, place: String, findings: Vec<Finding>) -> Killed {
        let Self { slot, rack, operation, remains, objects, mut body, victim, .. } = self;
        if let Some(body) = &mut body {
            body.add_siblings(&victim.mapped_files(), rack);
        }
        let noted = body.as_ref().map(Body::noted).unwrap_or_default();
        victim.kill();
        Killed {
            slot,
            operation,
            remains,
            objects,
            place,
            hand,
            noted,
            is_followed: false,
            findings,
            body,
        }
    }
}

impl Ground {
    /// Kills some clients in each slot, in all slots at the same time.
    pub(super) fn batch(&self) -> Vec<Killed> {
        std::thread::scope(|scope| {
            let slots: Vec<_> = (0..self.slots.len())
                .map(|slot| {
                    let kill = move |_| self.kill_one(slot);
                    scope.spawn(move || (0..EACH).map(kill).collect::<Vec<_>>())
                })
                .collect();
            let killed = slots.into_iter().map(|slot| slot.join().expect("rounds of a slot"));
            killed.flatten().collect()
        })
    }

    /// Starts a client and waits for its first mark. Only the calling thread can trace the client.
    pub(super) fn prepare(&self, index: usize, operation: &'static str) -> Prepared {
        let slot = &self.slots[index];
        let known = operations().find(|(name, ..)| *name == operation);
        let remains = known.expect("a known operation").1;
        let (dir, arguments) = (self.pool.dir(), arguments(slot, operation));
        let mut victim = Victim::start(&self.client, dir, slot.rack, &arguments);
        let objects = victim.wait_for_mark();
        let rack = slot.rack;
        let body = Body::among(&victim.mapped_files(), slot.rack);
        let bytes = if remains == Remains::RunInHand { RUN } else { slot.bytes };
        let mark = body.as_ref().map(|body| body.stock(bytes)).unwrap_or_default();
        Prepared { slot: index, rack, operation, remains, objects, bytes, mark, body, victim }
    }

    fn kill_one(&self, index: usize) -> Killed {
        let slot = &self.slots[index];
        let (key, task) = {
            let mut plan = self.plan.lock().expect("a plan");
            match self.means {
                Means::Steps => plan.next(|key| key.1 == slot.rack),
                Means::Times => plan.next_time(|key| key.1 == slot.rack),
            }
        };
        let mut client = self.prepare(index, key.0);
        match task {
            Task::Measure => {
                let trace = trace(&mut client.victim);
                self.plan.lock().expect("a plan").measured(key, &trace, &self.symbols);
                client.kill(format!("after all of its {} steps", trace.len()))
            }
            Task::Kill(target) => self.kill_at(client, key, target),
            Task::After(us) => {
                let at = client.victim.run_for(Duration::from_micros(us));
                client.kill(format!("after {us} us, at {at:?}"))
            }
        }
    }

    /// Runs a client to an instruction and kills it there. Some clients are followed from there to
    /// the end of their operation and are killed then.
    fn kill_at(&self, mut client: Prepared, key: Key, target: Target) -> Killed {
        let at = client.victim.run_to(target);
        let place = format!("{target:?}: at {at:?}");
        match at {
            At::End => return client.kill_with(Hand::Unknown, place, Vec::new()),
            At::Mark => return client.kill_at_end(Grasp::default(), place),
            At::Step => {}
        }
        let at = client.victim.at();
        let place = format!("{place} before {at:x}, {}", self.symbols.name(at));
        let is_followed = {
            let mut plan = self.plan.lock().expect("a plan");
            let is_followed = client.remains.is_in_hand() && plan.is_one_of(FOLLOWED);
            if is_followed {
                plan.again(key, target);
            } else {
                plan.killed(key, at, &self.symbols);
            }
            is_followed
        };
        if !is_followed {
            return client.kill(place);
        }
        client.follow(&place, |_| {})
    }
}

fn arguments(slot: &Slot, operation: &str) -> Vec<String> {
    let (near, far) = (slot.links[0].raw(), slot.links[1].raw());
    let (operation, link) =
        operation.strip_suffix("-far").map_or((operation, near), |operation| (operation, far));
    let table = slot.table.raw();
    let text = format!("{operation} {} {RUN} {link:x} {table:x}", slot.bytes);
    text.split(' ').map(str::to_owned).collect()
}

/// Steps to the next mark; returns the address of each instruction on the way.
fn trace(victim: &mut Victim) -> Vec<u64> {
    let mut trace = vec![victim.at()];
    while trace.len() < LONGEST && victim.step() == At::Step {
        trace.push(victim.at());
    }
    trace
}
