//! Retired objects: when the memory of each is reused.
//!
//! A reader pins an object by a note, executes a light barrier and loads the link to the object
//! again; only if the link is unchanged does the pin count. An object is retired after its last
//! link has changed. So a scan of all pins that follows a heavy barrier, which follows the
//! retirement, finds every pin that counts now or will count later. An object that such a scan does
//! not find has no reader. See docs/design/objects.md.
//!
//! | state | invariant | left by |
//! |---|---|---|
//! | new | no barrier has followed the retirement yet | a scan |
//! | pinned, until `t` | a scan found a pin, which counts or is being cleared | a scan after `t` |
//! | free | a scan found no pin | - |
//!
//! A daemon that restarts reports all retired objects of its rack as new.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::GlobalAddr;

use crate::Time;

/// The most objects of one scan. A shell frees that many objects without serving requests.
pub const SCAN: usize = 1024;
/// The time until a pinned object is looked at again for the first time, and the longest such time.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(100);

/// A retired object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Retired {
    /// When the object is looked at again.
    due: Time,
    addr: GlobalAddr,
    /// The time from the last look to `due`; zero before the first look.
    wait: Duration,
}

/// The retired objects of a rack.
#[derive(Debug, Default)]
pub struct Retirements {
    new: VecDeque<GlobalAddr>,
    /// Objects that a scan has found pinned, by the time at which they are looked at again.
    pinned: BTreeSet<Retired>,
}

/// Objects that are looked at together.
///
/// The shell executes a heavy barrier after it got the scan, then reads all pins, then passes the
/// scan to [`Retirements::scanned`].
#[derive(Debug)]
#[must_use = "objects of a scan that is dropped are never freed"]
pub struct Scan {
    objects: Vec<Retired>,
}

impl Scan {
    /// The objects, in no order.
    pub fn objects(&self) -> impl Iterator<Item = GlobalAddr> {
        self.objects.iter().map(|object| object.addr)
    }
}

impl Retirements {
    /// An object was retired.
    pub fn retired(&mut self, addr: GlobalAddr) {
        self.new.push_back(addr);
    }

    /// Returns when the next scan is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if self.new.is_empty() {
            self.pinned.first().map(|object| object.due)
        } else {
            Some(Time::ZERO)
        }
    }

    /// Returns the objects to be looked at now; `None` if no scan is due.
    pub fn begin_scan(&mut self, now: Time) -> Option<Scan> {
        let mut objects = Vec::new();
        while objects.len() < SCAN {
            let due = self.pinned.first().filter(|object| object.due <= now).copied();
            let Some(object) = due else { break };
            self.pinned.remove(&object);
            objects.push(object);
        }
        let new = self.new.len().min(SCAN - objects.len());
        let (due, wait) = (now, Duration::ZERO);
        objects.extend(self.new.drain(..new).map(|addr| Retired { due, addr, wait }));
        (!objects.is_empty()).then_some(Scan { objects })
    }

    /// Returns the objects of the scan that are free. `is_pinned` states what the scan found.
    pub fn scanned(
        &mut self,
        now: Time,
        scan: Scan,
        is_pinned: impl Fn(GlobalAddr) -> bool,
    ) -> Vec<GlobalAddr> {
        let mut free = Vec::new();
        for Retired { addr, wait, .. } in scan.objects {
            if is_pinned(addr) {
                let wait = (wait * 2).clamp(FIRST, LONGEST);
                self.pinned.insert(Retired { due: now.after(wait), addr, wait });
            } else {
                free.push(addr);
            }
        }
        free
    }

    /// Returns the number of objects that are not free yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.new.len() + self.pinned.len()
    }

    /// Returns true if all retired objects are free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
