//! Killing: one client after the other in each slot.

use std::fmt;
use std::time::Duration;

use rackpool_client::GlobalAddr;

use super::{EACH, Ground, RUN, Slot};
use crate::steps::autopsy::Body;
use crate::steps::plan::{OPERATIONS, Remains, Task};
use crate::steps::tracer::{At, Means, Victim};

/// Instructions of an operation that are looked at, at most: what takes longer waits.
const LONGEST: usize = 30_000;

/// A client that was killed inside an operation.
pub(super) struct Killed {
    pub(super) slot: usize,
    pub(super) operation: &'static str,
    pub(super) remains: Remains,
    /// What it had when the operation began.
    pub(super) objects: Vec<GlobalAddr>,
    /// Where it was killed, in words.
    pub(super) place: String,
    /// How far in its operation, where that can be told for certain.
    pub(super) moment: Option<usize>,
    pub(super) body: Option<Body>,
}

impl fmt::Debug for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, operation, objects, place, .. } = self;
        write!(f, "slot {slot}, {operation} with {objects:?}, {place}")
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

    fn kill_one(&self, index: usize) -> Killed {
        let slot = &self.slots[index];
        let (key, task) = {
            let mut plan = self.plan.lock().expect("a plan");
            match self.means {
                Means::Steps => plan.next(|key| key.1 == slot.rack),
                Means::Times => plan.next_time(|key| key.1 == slot.rack),
            }
        };
        let mut victim = Victim::start(self.pool.dir(), slot.rack, &arguments(slot, key.0));
        let objects = victim.wait_for_mark();
        let body = Body::among(&victim.mapped_files());
        let mut moment = None;
        let place = match task {
            Task::Measure => {
                let (trace, is_whole) = trace(&mut victim);
                moment = is_whole.then_some(usize::MAX);
                let mut plan = self.plan.lock().expect("a plan");
                plan.measured(key, &trace, &self.symbols);
                format!("after all of its {} steps", trace.len())
            }
            Task::Kill(target) => match victim.run_to(target) {
                At::Step => {
                    let at = victim.at();
                    self.plan.lock().expect("a plan").killed(key, at, &self.symbols);
                    // How often a waiting program goes round differs from run to run.
                    moment = (target.times == 1 && target.more == 0).then_some(target.step);
                    let function = self.symbols.function(at).unwrap_or("elsewhere");
                    format!("{target:?}: before {at:x}, {function}")
                }
                other => format!("{target:?}: at {other:?}"),
            },
            Task::After(us) => {
                victim.run_for(Duration::from_micros(us));
                format!("after {us} us")
            }
        };
        victim.kill();
        let remains =
            OPERATIONS.iter().find(|(name, _)| *name == key.0).map(|(_, remains)| *remains);
        let remains = remains.expect("a known operation");
        Killed { slot: index, operation: key.0, remains, objects, place, moment, body }
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

/// Steps to the next mark; each instruction on the way, and whether it came to the mark.
fn trace(victim: &mut Victim) -> (Vec<u64>, bool) {
    let mut trace = vec![victim.at()];
    while trace.len() < LONGEST {
        if victim.step() != At::Step {
            return (trace, true);
        }
        trace.push(victim.at());
    }
    (trace, false)
}
