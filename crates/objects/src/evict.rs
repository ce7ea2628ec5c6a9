//! Room for objects: capacity, eviction, time to live.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rackpool_client::{AllocError, GlobalAddr};

use crate::error::StoreError;
use crate::layout::head::{HeadLayout, at};
use crate::options::EvictionPolicy;
use crate::protocol::Source;
use crate::store::{Purpose, Store, lock};
use crate::survey::{Candidate, Survey};
use crate::unsealed::FixedMemory;

/// The candidates whose pins are looked up with one request to the daemon.
const BATCH: usize = 5;
/// The time between two sweeps for expired objects by one program.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The most surveys of one eviction: 16,384 objects that can't be evicted were unused for longer
/// than one that can.
const MAX_SURVEYS: u32 = 16;

/// What became of a candidate.
enum Outcome {
    Evicted,
    /// It was replaced, or its rack or that of a replica is away.
    Kept,
    /// Its last use, in this rack or another one, is later than that of the survey: at this time in
    /// milliseconds since 1970.
    Used(u64),
}

/// Which objects may be evicted. Replicas and expired objects always may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objects {
    Stay,
    MayGo,
}

impl Store {
    /// Evicts objects and replicas of this rack until `bytes` bytes of memory are free again, the
    /// ones that were unused for longest first, whatever the policy of the store. Under the policy
    /// [`Spill`](EvictionPolicy::Spill) objects move to files, else they are deleted. Those that a
    /// program of this rack has a view of stay. Returns how many bytes were evicted: fewer if there
    /// is nothing else.
    ///
    /// # Errors
    /// That of the pool.
    pub fn evict(&self, bytes: u64) -> Result<u64, StoreError> {
        self.check_in_use()?;
        self.evict_some(&mut lock(&self.shared.survey), bytes, Objects::MayGo)
    }

    /// Allocates memory for an object. Evicts what it must and may.
    pub(crate) fn allocate(
        &self,
        layout: HeadLayout,
        len: u64,
        is_contiguous: bool,
    ) -> Result<FixedMemory, StoreError> {
        self.with_room(layout, len, || {
            let mut memory = FixedMemory::head(self.pool(), layout, len, is_contiguous)?;
            memory.allocate_extents()?;
            Ok(memory)
        })
    }

    /// Allocates the extents of a head, and what it has besides. Evicts what it must and may.
    pub(crate) fn allocate_extents(&self, memory: &mut FixedMemory) -> Result<(), StoreError> {
        self.with_room(memory.layout, memory.len, || memory.allocate_extents())
    }

    /// Allocates the head of a replica of `len` bytes. It counts when its extents are allocated.
    pub(crate) fn allocate_head(
        &self,
        layout: HeadLayout,
        len: u64,
    ) -> Result<FixedMemory, StoreError> {
        let allocate = || FixedMemory::head(self.pool(), layout, len, false);
        self.evicting(layout.body(), self.options()?.policy, allocate)
    }

    /// Makes room in the store for an object of `len` bytes, and allocates what it needs.
    fn with_room<R>(
        &self,
        layout: HeadLayout,
        len: u64,
        allocate: impl FnMut() -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let options = self.options()?;
        let bytes = layout.memory_for(len, self.pool().page_bytes());
        if options.time_to_live.is_some() {
            self.sweep()?;
        }
        if let Some(capacity) = options.capacity {
            self.make_room(bytes, capacity, options.policy)?;
        }
        let allocated = self.evicting(bytes, options.policy, allocate)?;
        lock(&self.shared.survey).grow(bytes);
        Ok(allocated)
    }

    /// Repeats `allocate` as long as something can be evicted for it.
    fn evicting<R>(
        &self,
        bytes: u64,
        policy: EvictionPolicy,
        mut allocate: impl FnMut() -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        loop {
            match allocate() {
                Err(
                    full @ (StoreError::Alloc(AllocError::RackFull { .. })
                    | StoreError::Fragmented { .. }),
                ) if self.shared.purpose != Purpose::Lender => {
                    let mut survey = lock(&self.shared.survey);
                    if self.evict_some(&mut survey, bytes, objects_of(policy))? == 0 {
                        return Err(full);
                    }
                }
                done => return done,
            }
        }
    }

    /// Evicts until there is room for `bytes` more within the capacity.
    fn make_room(
        &self,
        bytes: u64,
        capacity: u64,
        policy: EvictionPolicy,
    ) -> Result<(), StoreError> {
        let mut survey = lock(&self.shared.survey);
        let excess = |survey: &Survey| survey.bytes.saturating_add(bytes).saturating_sub(capacity);
        if (excess(&survey) > 0 || survey.bytes == 0) && survey.is_old() {
            self.survey(&mut survey, |_| true)?;
        }
        // A survey on the way may find what other programs have created or deleted.
        loop {
            let too_much = excess(&survey);
            if too_much == 0 {
                return Ok(());
            }
            let may_evict = bytes <= capacity && self.shared.purpose != Purpose::Lender;
            let evicted = match may_evict {
                true => self.evict_some(&mut survey, too_much, objects_of(policy))?,
                false => 0,
            };
            if evicted == 0 && excess(&survey) > 0 {
                return Err(StoreError::StoreFull { bytes, used: survey.bytes, capacity });
            }
        }
    }

    /// Evicts candidates until `wanted` bytes are free again. Surveys the rack when it has none
    /// left.
    ///
    /// # Errors
    /// Why a candidate could not be evicted, if the others were not enough.
    fn evict_some(
        &self,
        survey: &mut Survey,
        wanted: u64,
        objects: Objects,
    ) -> Result<u64, StoreError> {
        let may_go = |candidate: &Candidate| {
            let is_spared = objects == Objects::Stay && candidate.source == Source::Objects;
            !is_spared || candidate.has_expired
        };
        let (mut freed, mut surveys, mut seen) = (0_u64, 0, HashSet::<GlobalAddr>::new());
        let (mut failed, mut has_second_chance) = (None, false);
        while freed < wanted {
            let some = survey.take(BATCH, may_go);
            if some.is_empty() {
                surveys += 1;
                if surveys > MAX_SURVEYS {
                    break;
                }
                self.survey(survey, |one| may_go(one) && !seen.contains(&one.object.place.addr))?;
                // With their last uses known, one of these may be the oldest.
                if survey.candidates.is_empty() && std::mem::take(&mut has_second_chance) {
                    seen.clear();
                } else if survey.candidates.is_empty() {
                    break;
                }
                continue;
            }
            let heads: Vec<GlobalAddr> = some.iter().map(|one| one.object.place.addr).collect();
            let pinned = self.pool().pinned(&heads)?;
            seen.extend(&heads);
            let mut some = some.into_iter().zip(pinned);
            while freed < wanted
                && let Some((one, is_pinned)) = some.next()
            {
                if is_pinned {
                    continue;
                }
                match self.evict_one(&one) {
                    Ok(Outcome::Evicted) => {
                        freed = freed.saturating_add(one.bytes);
                        self.count_eviction(survey, one.bytes);
                    }
                    Ok(Outcome::Used(at_ms)) => {
                        survey.note_use(&one.object, at_ms);
                        has_second_chance = true;
                    }
                    Ok(Outcome::Kept) => {}
                    // It is the same with others.
                    Err(error) if error.is_of_disk() => return Err(error),
                    // Another one may do: the rack of a replica may be away.
                    Err(error) => failed = Some(error),
                }
            }
            survey.candidates.extend(some.rev().map(|(one, _)| one));
        }
        self.sweep_files(survey)?;
        match failed {
            Some(error) if freed < wanted => Err(error),
            _ => Ok(freed),
        }
    }

    fn count_eviction(&self, survey: &mut Survey, bytes: u64) {
        survey.shrink(bytes);
        self.shared.counters.evictions.add(1);
        self.shared.counters.evicted_bytes.add(bytes);
    }

    /// Evicts a candidate, unless it was used or replaced since the survey.
    fn evict_one(&self, candidate: &Candidate) -> Result<Outcome, StoreError> {
        let Candidate { last_use_ms, has_expired, source, keys, object, bytes } = candidate;
        // The survey may have taken long.
        self.check_in_use()?;
        let layout = HeadLayout::of(keys.id_len());
        // `None` if it can't be read: it was replaced, or its rack is away.
        let used_at = |head: GlobalAddr| {
            let mut word = [0; 8];
            self.pool().read(at(head, layout.last_use()), &mut word).ok()?;
            Some(u64::from_le_bytes(word))
        };
        if !has_expired {
            match used_at(object.place.addr) {
                Some(at_ms) if at_ms <= *last_use_ms => {}
                Some(at_ms) => return Ok(Outcome::Used(at_ms)),
                None => return Ok(Outcome::Kept),
            }
        }
        let policy = self.options()?.policy;
        let is_evicted = match source {
            Source::Replicas => self.with(|handles| {
                let Some(replicas) = &mut handles.replicas else { return Ok(false) };
                Ok(replicas.delete_placed(keys.object(), &object.place)?)
            }),
            Source::Objects if *has_expired => self.delete_version(keys, object),
            Source::Objects => {
                let replicas = self.replicas_of(keys, object)?;
                let uses = replicas.into_iter().map(used_at).collect::<Option<Vec<u64>>>();
                let Some(uses) = uses else { return Ok(Outcome::Kept) };
                let last = uses.into_iter().max().unwrap_or(0);
                if last > *last_use_ms {
                    return Ok(Outcome::Used(last));
                }
                match policy {
                    EvictionPolicy::Spill => self.move_away(keys, object, *bytes),
                    EvictionPolicy::Keep | EvictionPolicy::Lru => self.delete_version(keys, object),
                }
            }
        }?;
        Ok(if is_evicted { Outcome::Evicted } else { Outcome::Kept })
    }

    /// Deletes the expired objects of this rack, unless this program did so a short time ago.
    pub(crate) fn sweep(&self) -> Result<(), StoreError> {
        let mut survey = lock(&self.shared.survey);
        if survey.swept.is_some_and(|at| at.elapsed() < SWEEP_EVERY) {
            return Ok(());
        }
        survey.swept = Some(Instant::now());
        loop {
            self.survey(&mut survey, |candidate| candidate.has_expired)?;
            let expired = std::mem::take(&mut survey.candidates);
            let mut deleted = 0;
            for one in &expired {
                if let Outcome::Evicted = self.evict_one(one)? {
                    self.count_eviction(&mut survey, one.bytes);
                    deleted += 1;
                }
            }
            // There may be more than one survey keeps.
            if deleted == 0 {
                return Ok(());
            }
        }
    }
}

const fn objects_of(policy: EvictionPolicy) -> Objects {
    match policy {
        EvictionPolicy::Keep => Objects::Stay,
        EvictionPolicy::Lru | EvictionPolicy::Spill => Objects::MayGo,
    }
}
