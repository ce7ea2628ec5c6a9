use std::time::{Duration, Instant};

use rackpool_kv::{Round, now_ms};

use super::policy::{Candidate, keep_most_urgent};
use super::{EvictionPolicy, MemoryLimit};
use crate::failure::Failure;
use crate::store::Store;

/// How long a command evicts before it is executed.
const LONGEST: Duration = Duration::from_millis(2);
/// The fewest steps of the walk before an eviction gives up, however long it was kept from its
/// core.
const LEAST_SEARCHES: u32 = 4;
/// How long a thread that found nothing to evict does not search again for commands.
const PAUSE: Duration = Duration::from_millis(100);
/// The most entries, and about the most bytes, that one step of a scan reads.
const STRIDE: u64 = 64;
const STRIDE_BYTES: u64 = 256 << 10;
/// The fewest entries of a step.
const LEAST_STRIDE: u64 = 4;
/// The next step reads fewer entries if one took longer. In another rack an entry takes a round
/// trip.
const LONGEST_STEP: Duration = Duration::from_millis(1);

/// Whether a command that needs memory may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Room {
    /// The entries take no more than the limit, or something was evicted.
    Enough,
    /// Nothing could be evicted.
    None,
}

/// A thread's search for entries to evict: a walk through the table of keys, round after round,
/// from a random position.
#[derive(Debug)]
pub struct Evictor {
    round: Option<Round>,
    /// The entries of the next step.
    stride: u64,
    /// What the last step chose, the most urgent at the end.
    found: Vec<Candidate>,
    /// The policy by which it was chosen.
    policy: Option<EvictionPolicy>,
    pauses_until: Option<Instant>,
}

/// The number of keys that were evicted, and of expired ones that were deleted on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Keys that were present.
    pub keys: u64,
    /// Keys that had expired.
    pub expired: u64,
}

impl Default for Evictor {
    fn default() -> Self {
        Self { round: None, stride: STRIDE, found: Vec::new(), policy: None, pauses_until: None }
    }
}

impl Evictor {
    /// Makes room for a command. Call it only while the limit is exceeded.
    pub fn make_room(
        &mut self,
        store: &mut Store,
        memory: &MemoryLimit,
    ) -> Result<(Room, Evicted), Failure> {
        let now = Instant::now();
        let pauses = self.pauses_until.is_some_and(|until| now < until);
        if pauses || memory.policy() == EvictionPolicy::NoEviction {
            return Ok((Room::None, Evicted::default()));
        }
        let evicted = self.evict(store, memory, LONGEST)?;
        if evicted != Evicted::default() || !memory.is_exceeded() {
            return Ok((Room::Enough, evicted));
        }
        self.pauses_until = Some(Instant::now() + PAUSE);
        Ok((Room::None, evicted))
    }

    /// Evicts until the entries take no more than the limit, or for as long as `longest`. What the
    /// last step has found is evicted in any case. Another thread may have evicted all of that, so
    /// a few more steps are made before the call ends without result.
    pub fn evict(
        &mut self,
        store: &mut Store,
        memory: &MemoryLimit,
        longest: Duration,
    ) -> Result<Evicted, Failure> {
        let (begin, policy) = (Instant::now(), memory.policy());
        let (mut evicted, mut searches) = (Evicted::default(), 0);
        if self.policy != Some(policy) {
            self.found.clear();
            self.policy = Some(policy);
        }
        // An eviction is no use of its key, nor of those in the same bucket.
        let uses = store.keys.record_use(None);
        let mut done = Ok(());
        while memory.is_exceeded() && policy != EvictionPolicy::NoEviction {
            done = match self.found.pop() {
                Some(candidate) => delete(store, memory, policy, &candidate, &mut evicted),
                None => {
                    searches += 1;
                    self.search(store, memory, policy)
                }
            };
            let has_tried = evicted != Evicted::default() || searches >= LEAST_SEARCHES;
            let is_over = self.found.is_empty() && has_tried && begin.elapsed() > longest;
            if done.is_err() || is_over {
                break;
            }
        }
        store.keys.record_use(uses);
        // An error after an eviction is met again by the next one.
        if evicted == Evicted::default() { done.map(|()| evicted) } else { Ok(evicted) }
    }

    /// Takes a step of the walk.
    fn search(
        &mut self,
        store: &mut Store,
        memory: &MemoryLimit,
        policy: EvictionPolicy,
    ) -> Result<(), Failure> {
        let round = self.round.get_or_insert_with(|| Round::anywhere(&store.keys));
        let of_bytes = STRIDE_BYTES / memory.mean_bytes.load(super::Relaxed).max(1);
        let stride = self.stride.min(of_bytes).max(LEAST_STRIDE);
        let (found, now_ms, begin) = (&mut self.found, now_ms(), Instant::now());
        let scanned =
            store.keys.scan(round.cursor(), usize::try_from(stride).unwrap_or(1), |key, entry| {
                let age = memory.uses.age(key);
                if let Some(urgency) = policy.urgency(entry.form, age, now_ms) {
                    let expires_ms = entry.form.expires_ms;
                    found.push(Candidate { urgency, key: key.to_vec(), expires_ms });
                }
            });
        let is_long = begin.elapsed() > LONGEST_STEP;
        self.stride = if is_long { (stride / 2).max(LEAST_STRIDE) } else { STRIDE.min(2 * stride) };
        match scanned {
            Ok(next) => {
                round.go_on(next);
                keep_most_urgent(found);
                Ok(())
            }
            // Entries that cannot be read must not stop the walk at their place.
            Err(error) => {
                found.clear();
                round.go_on(store.keys.scan_past(round.cursor()).unwrap_or(0));
                Err(error.into())
            }
        }
    }
}

/// Deletes a candidate, unless it was used or given another expiry since it was found.
fn delete(
    store: &mut Store,
    memory: &MemoryLimit,
    policy: EvictionPolicy,
    candidate: &Candidate,
    evicted: &mut Evicted,
) -> Result<(), Failure> {
    let Candidate { urgency, key, expires_ms } = candidate;
    let is_over = *urgency == u64::MAX;
    if policy == EvictionPolicy::AllkeysLru
        && !is_over
        && u64::from(memory.uses.age(key)) < *urgency
    {
        return Ok(());
    }
    let deleted = store.evict(key, |entry| match entry {
        Some(_) if is_over => false,
        Some(form) => policy == EvictionPolicy::AllkeysLru || form.expires_ms == *expires_ms,
        None => true,
    })?;
    match deleted {
        Some(true) => evicted.keys += 1,
        Some(false) => evicted.expired += 1,
        None => {}
    }
    store.settle(memory, true);
    Ok(())
}
