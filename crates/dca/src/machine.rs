//! One socket: the LLC, an L2 for each core, and the counters of each program.

use crate::OptionsError;
use crate::cache::{Evicted, Indexing, LineState, Llc, Replacement, index};
use crate::l2::{L2, L2Line, SnoopFilter};
use crate::mask::{MAX_WAYS, WayMask};
use crate::outcome::Counters;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// The largest LLC of the model (bytes).
const MAX_LLC_BYTES: u64 = 1 << 30;

/// The largest L2 of the model (bytes).
const MAX_L2_BYTES: u64 = 4 << 20;

/// The caches of one socket. The default is a Xeon Gold 6140 (Skylake), as in the paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineOptions {
    /// Size of the LLC (bytes): a whole number of sets of `llc_ways` lines, at most 1 GiB.
    pub llc_bytes: u64,
    /// Ways of the LLC, 1 to 32.
    pub llc_ways: u32,
    /// How an address selects its LLC set.
    pub indexing: Indexing,
    /// How the LLC selects the line to evict.
    pub replacement: Replacement,
    /// Ways in which device writes allocate (IIO LLC WAYS register).
    pub ddio_ways: WayMask,
    /// Size of the L2 of each core (bytes): a whole number of sets of `l2_ways` lines, at most
    /// 4 MiB.
    pub l2_bytes: u64,
    /// Ways of each L2, 1 to 32.
    pub l2_ways: u32,
    /// Seed of all random choices. Equal seeds give equal results.
    pub seed: u64,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            llc_bytes: 11 * 36_864 * LINE_BYTES,
            llc_ways: 11,
            indexing: Indexing::Hashed,
            replacement: Replacement::Random,
            ddio_ways: WayMask::DDIO_DEFAULT,
            l2_bytes: 1 << 20,
            l2_ways: 16,
            seed: 1,
        }
    }
}

impl MachineOptions {
    /// Checks all options.
    ///
    /// # Errors
    /// Returns the first option outside its valid range.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.llc_sets()?;
        self.l2_sets()?;
        self.ddio_ways.check("ddio_ways", self.llc_ways)
    }

    /// Number of LLC sets.
    ///
    /// # Errors
    /// Returns an error if the size or the number of ways of the LLC is not valid.
    pub fn llc_sets(&self) -> Result<usize, OptionsError> {
        check_ways("llc_ways", self.llc_ways)?;
        sets("llc_bytes", self.llc_bytes, self.llc_ways, MAX_LLC_BYTES)
    }

    fn l2_sets(&self) -> Result<usize, OptionsError> {
        check_ways("l2_ways", self.l2_ways)?;
        sets("l2_bytes", self.l2_bytes, self.l2_ways, MAX_L2_BYTES)
    }
}

fn check_ways(option: &'static str, ways: u32) -> Result<(), OptionsError> {
    let advice = format_args!("give 1 to {MAX_WAYS} ways");
    OptionsError::check((1..=MAX_WAYS).contains(&ways), option, &ways, &advice)
}

/// Number of sets of a cache of `bytes` bytes, at most `limit`. `ways` must be at least 1.
fn sets(option: &'static str, bytes: u64, ways: u32, limit: u64) -> Result<usize, OptionsError> {
    let set_bytes = u64::from(ways) * LINE_BYTES;
    let valid = bytes > 0 && bytes <= limit && bytes.is_multiple_of(set_bytes);
    let advice = format_args!(
        "give a multiple of {set_bytes} bytes ({ways} ways of {LINE_BYTES} B), at most {limit}"
    );
    OptionsError::check(valid, option, &bytes, &advice)?;
    Ok(index(bytes / set_bytes))
}

/// Where device writes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DmaPath {
    /// Into the LLC of the socket of the card.
    #[default]
    Ddio,
    /// To memory, because card and buffers are on different sockets.
    OtherSocket,
    /// To memory, because DDIO is disabled for the card.
    DdioDisabled,
}

/// The nearest place that held an accessed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The core's own L2.
    L2,
    /// The LLC, or the L2 of another core.
    Llc,
    /// Memory.
    Memory,
}

/// The caches of one socket while accesses go through them.
///
/// The LLC is not inclusive: a core access moves the line from the LLC or memory into the core's
/// L2, and a line that the L2 evicts goes into any LLC way that the core's CAT mask allows.
#[derive(Clone, Debug)]
pub struct Machine {
    llc: Llc,
    l2s: Vec<L2>,
    cat_masks: Vec<WayMask>,
    snoop_filter: SnoopFilter,
    ddio_ways: WayMask,
    counters: Vec<Counters>,
}

impl Machine {
    /// A machine with cold caches. `cat_masks` holds one mask for each core; `programs` is the
    /// number of programs that are counted separately, at most 256.
    ///
    /// # Errors
    /// Returns an error if an option or a mask is not valid.
    pub fn new(
        options: &MachineOptions,
        cat_masks: &[WayMask],
        programs: u8,
    ) -> Result<Self, OptionsError> {
        options.check()?;
        cat_masks.iter().try_for_each(|mask| mask.check("cat_mask", options.llc_ways))?;
        let l2 = L2::new(options.l2_sets()?, options.l2_ways as usize);
        Ok(Self {
            llc: Llc::new(
                options.llc_sets()?,
                options.llc_ways as usize,
                options.indexing,
                options.replacement,
                options.seed,
            ),
            l2s: vec![l2; cat_masks.len()],
            cat_masks: cat_masks.to_vec(),
            snoop_filter: SnoopFilter::new(),
            ddio_ways: options.ddio_ways,
            counters: vec![Counters::default(); usize::from(programs).max(1)],
        })
    }

    /// The counters of `program`; zeros for an unknown program.
    #[must_use]
    pub fn counters(&self, program: u8) -> Counters {
        self.counters.get(usize::from(program)).copied().unwrap_or_default()
    }

    /// Sets all counters to zero; the caches keep their lines.
    pub fn reset_counters(&mut self) {
        self.counters.fill(Counters::default());
    }

    /// A device writes the whole of `line` (byte address divided by 64) for `program`.
    ///
    /// Assumption: a line that only an L2 holds counts as a hit. The snoop filter knows it, and
    /// figure 6 shows about 100 % for packets of 256 B, whose headers stay in the L2. The L2 copy
    /// becomes invalid, and the LLC allocates the line in the DDIO ways.
    pub fn device_write(&mut self, line: u64, program: u8, path: DmaPath) -> Level {
        let in_l2 = self.invalidate_l2s(line);
        let slot = self.llc.find(line);
        if path != DmaPath::Ddio {
            if let Some(slot) = slot {
                self.llc.remove(slot);
            }
            let counters = self.count(program);
            counters.device_writes_bypassed += 1;
            counters.memory_write_bytes += LINE_BYTES;
            return Level::Memory;
        }
        let state = LineState { dirty: true, unread: true, program };
        let level = if in_l2 || slot.is_some() { Level::Llc } else { Level::Memory };
        if let Some(slot) = slot {
            *self.llc.touch(slot) = state;
        } else {
            let evicted = self.llc.insert(line, state, self.ddio_ways);
            self.write_back(evicted, program);
        }
        let counters = self.count(program);
        match level {
            Level::Memory => counters.device_write_misses += 1,
            Level::L2 | Level::Llc => counters.device_write_hits += 1,
        }
        level
    }

    /// A device reads `line` (byte address divided by 64) for `program`. Never allocates.
    pub fn device_read(&mut self, line: u64, program: u8) -> Level {
        let found = self.llc.find(line);
        if let Some(slot) = found {
            self.llc.touch(slot).unread = false;
        }
        let hit = found.is_some() || self.l2_holder(line).is_some();
        let counters = self.count(program);
        if hit {
            counters.device_read_hits += 1;
            return Level::Llc;
        }
        counters.device_read_misses += 1;
        counters.memory_read_bytes += LINE_BYTES;
        Level::Memory
    }

    /// The core with index `core` reads or writes `line` (byte address divided by 64) for
    /// `program`. The access moves the line into the core's L2. A core outside the machine reads
    /// memory and leaves the caches alone.
    pub fn core_access(&mut self, core: usize, line: u64, write: bool, program: u8) -> Level {
        if self.l2s.get_mut(core).is_some_and(|l2| l2.access(line, write)) {
            self.count(program).core_l2_hits += 1;
            return Level::L2;
        }
        let moved = match self.llc.find(line) {
            Some(slot) => Some(self.llc.remove(slot).dirty),
            None => self.take_from_l2(line),
        };
        let counters = self.count(program);
        let level = if moved.is_some() { Level::Llc } else { Level::Memory };
        if level == Level::Llc {
            counters.core_llc_hits += 1;
        } else {
            counters.core_misses += 1;
            counters.memory_read_bytes += LINE_BYTES;
        }
        self.fill_l2(core, L2Line { line, dirty: write || moved == Some(true) }, program);
        level
    }

    /// A line passes through the L2 of `core` without being reused there, as prefetched lines do:
    /// it moves to any LLC way that the CAT mask of the core allows. Returns where it was. A line
    /// that an L2 holds stays there, and the access is not counted.
    ///
    /// Assumption: the model leaves out the time that the line stays in the L2.
    pub fn core_prefetch(&mut self, core: usize, line: u64, program: u8) -> Level {
        if self.l2_holder(line).is_some() {
            return Level::L2;
        }
        let Some(&mask) = self.cat_masks.get(core) else { return Level::Memory };
        let old = self.llc.find(line);
        let state = old.map_or(LineState::default(), |slot| *self.llc.touch(slot));
        let evicted = self.llc.insert(line, LineState { unread: false, program, ..state }, mask);
        if let Some(slot) = old {
            if evicted.is_none_or(|evicted| evicted.line != line) {
                self.llc.remove(slot);
                self.write_back(evicted, program);
            }
            self.count(program).core_llc_hits += 1;
            return Level::Llc;
        }
        self.write_back(evicted, program);
        let counters = self.count(program);
        counters.core_misses += 1;
        counters.memory_read_bytes += LINE_BYTES;
        Level::Memory
    }

    /// The L2 of `core` evicts a clean `line` that no program of the simulation uses again: it
    /// goes into an LLC way that the CAT mask of the core allows. Not counted as an access.
    pub fn core_eviction(&mut self, core: usize, line: u64, program: u8) {
        let Some(&mask) = self.cat_masks.get(core) else { return };
        if self.llc.find(line).is_none() {
            let evicted = self.llc.insert(line, LineState::default(), mask);
            self.write_back(evicted, program);
        }
    }

    /// Adds `added` to the L2 of `core`; the line that the L2 evicts goes into the LLC.
    fn fill_l2(&mut self, core: usize, added: L2Line, program: u8) {
        let (Some(l2), Some(&mask)) = (self.l2s.get_mut(core), self.cat_masks.get(core)) else {
            return;
        };
        self.snoop_filter.add(added.line);
        let Some(victim) = l2.insert(added) else { return };
        self.snoop_filter.remove(victim.line);
        let state = LineState { dirty: victim.dirty, unread: false, program };
        let evicted = self.llc.insert(victim.line, state, mask);
        self.write_back(evicted, program);
    }

    /// Counts what an eviction from the LLC costs: `program` caused it.
    fn write_back(&mut self, evicted: Option<Evicted>, program: u8) {
        let Some(Evicted { state, .. }) = evicted else { return };
        if state.dirty {
            self.count(program).memory_write_bytes += LINE_BYTES;
        }
        if state.unread {
            self.count(state.program).leaked_lines += 1;
        }
    }

    /// The core whose L2 holds `line`.
    fn l2_holder(&self, line: u64) -> Option<usize> {
        if !self.snoop_filter.may_contain(line) {
            return None;
        }
        self.l2s.iter().position(|l2| l2.contains(line))
    }

    /// Removes `line` from the L2 that holds it and returns whether it was dirty.
    fn take_from_l2(&mut self, line: u64) -> Option<bool> {
        let holder = self.l2_holder(line)?;
        let taken = self.l2s.get_mut(holder)?.remove(line)?;
        self.snoop_filter.remove(line);
        Some(taken.dirty)
    }

    fn invalidate_l2s(&mut self, line: u64) -> bool {
        self.take_from_l2(line).is_some()
    }

    /// The counters of `program`; an unknown program is counted with the last one.
    fn count(&mut self, program: u8) -> &mut Counters {
        let last = self.counters.len() - 1;
        &mut self.counters[usize::from(program).min(last)]
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
