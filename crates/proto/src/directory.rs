//! The page directory: which rack is the home of a page.

use alloc::collections::BTreeMap;

use rackpool_model::{MemoryId, PageId, PageRange, RackId};

/// The page ids of one memory, in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The ids; as many as the memory has frames.
    pub pages: PageRange,
    /// The rack whose memory it is, and the home of the pages.
    pub rack: RackId,
    /// The memory.
    pub memory: MemoryId,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The page's home, and the run of pages for which that holds.
    Home {
        /// The run.
        pages: PageRange,
        /// The rack.
        rack: RackId,
    },
    /// The page's rack has another memory now: the contents are gone.
    Lost,
    /// Nobody has that page id.
    NeverHandedOut,
}

/// Why a run can't be part of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Less than the wanted number of page ids are left.
    #[error("{frames} page ids are wanted, {left} are left")]
    Exhausted {
        /// Ids wanted.
        frames: u32,
        /// Ids left.
        left: u64,
    },
    /// The run is empty, holds page 0, ends past the last id or shares ids with another run.
    #[error("the run of {} pages from {} is empty or overlaps another", .0.pages.count, .0.pages.first)]
    Misplaced(Run),
    /// The memory has a run already.
    #[error("memory {} has two runs, at {} and {}", .0.memory, .0.pages.first, .1)]
    SecondRun(Run, PageId),
    /// A rack serves a memory that has no run of that rack.
    #[error("{rack} serves memory {memory}, which has no page ids of that rack")]
    NoRun {
        /// The rack.
        rack: RackId,
        /// The memory.
        memory: MemoryId,
    },
}

/// The page directory. Ids are handed out in ascending order, one run for each memory, and never
/// again. A rack serves at most one memory; runs of its other memories are lost.
///
/// It takes about 50 B for each run, however long the run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// By the first id.
    runs: BTreeMap<PageId, Run>,
    /// First id of the run that the rack serves.
    served: BTreeMap<RackId, PageId>,
}

impl Directory {
    /// The run of a memory, lost or not. Takes a look at every run.
    #[must_use]
    pub fn run_of(&self, memory: MemoryId) -> Option<&Run> {
        self.runs.values().find(|run| run.memory == memory)
    }

    /// The run that a memory without one would get. Nothing is changed.
    pub fn next_run(
        &self,
        rack: RackId,
        memory: MemoryId,
        frames: u32,
    ) -> Result<Run, DirectoryError> {
        let first = self.first_free();
        let left = (1 << 32) - first;
        match u32::try_from(first) {
            Ok(first) if u64::from(frames) <= left => {
                let pages = PageRange { first: PageId(first), count: frames };
                Ok(Run { pages, rack, memory })
            }
            _ => Err(DirectoryError::Exhausted { frames, left }),
        }
    }

    /// Takes in a run, given by [`Self::next_run`] or read from the store in order of ids.
    pub fn add(&mut self, run: Run) -> Result<(), DirectoryError> {
        let first = u64::from(run.pages.first.0);
        if run.pages.count == 0
            || first < self.first_free()
            || first + u64::from(run.pages.count) > 1 << 32
        {
            return Err(DirectoryError::Misplaced(run));
        }
        if let Some(other) = self.run_of(run.memory) {
            return Err(DirectoryError::SecondRun(run, other.pages.first));
        }
        self.runs.insert(run.pages.first, run);
        Ok(())
    }

    /// Notes that the rack serves this memory now. The run of another memory it served before is
    /// lost by that.
    pub fn serve(&mut self, rack: RackId, memory: MemoryId) -> Result<(), DirectoryError> {
        match self.run_of(memory) {
            Some(run) if run.rack == rack => {
                let first = run.pages.first;
                self.served.insert(rack, first);
                Ok(())
            }
            _ => Err(DirectoryError::NoRun { rack, memory }),
        }
    }

    /// Where the page is.
    #[must_use]
    pub fn lookup(&self, page: PageId) -> Lookup {
        match self.runs.range(..=page).next_back() {
            Some((_, run)) if run.pages.contains(page) => {
                if self.is_lost(run) {
                    Lookup::Lost
                } else {
                    Lookup::Home { pages: run.pages, rack: run.rack }
                }
            }
            _ => Lookup::NeverHandedOut,
        }
    }

    /// The run the rack serves.
    #[must_use]
    pub fn served_by(&self, rack: RackId) -> Option<&Run> {
        self.runs.get(self.served.get(&rack)?)
    }

    /// Page ids whose contents are lost.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        let lost = self.runs.values().filter(|run| self.is_lost(run));
        lost.map(|run| u64::from(run.pages.count)).sum()
    }

    fn is_lost(&self, run: &Run) -> bool {
        self.served.get(&run.rack) != Some(&run.pages.first)
    }

    /// The lowest id above all runs: 1 to 2^32. Page 0 does not exist.
    fn first_free(&self) -> u64 {
        let last = self.runs.values().next_back();
        last.map_or(1, |run| u64::from(run.pages.first.0) + u64::from(run.pages.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACK: RackId = RackId(1);
    const MEMORY: MemoryId = MemoryId(7);

    #[test]
    fn ids_end_at_two_to_the_32() {
        let mut directory = Directory::default();
        let most = directory.next_run(RACK, MEMORY, u32::MAX).unwrap();
        assert_eq!(most.pages, PageRange { first: PageId(1), count: u32::MAX });
        directory.add(most).unwrap();
        directory.serve(RACK, MEMORY).unwrap();
        assert!(matches!(directory.lookup(PageId(u32::MAX)), Lookup::Home { rack: RACK, .. }));
        assert_eq!(
            directory.next_run(RACK, MemoryId(8), 1),
            Err(DirectoryError::Exhausted { frames: 1, left: 0 })
        );
    }

    #[test]
    fn runs_that_break_the_rules_are_refused() {
        let run = |first, count, memory| Run {
            pages: PageRange { first: PageId(first), count },
            rack: RACK,
            memory: MemoryId(memory),
        };
        let mut directory = Directory::default();
        directory.add(run(5, 10, 1)).unwrap();
        for bad in [run(0, 3, 2), run(14, 1, 2), run(20, 0, 2), run(u32::MAX, 2, 2)] {
            assert_eq!(directory.add(bad), Err(DirectoryError::Misplaced(bad)));
        }
        assert_eq!(
            directory.add(run(15, 1, 1)),
            Err(DirectoryError::SecondRun(run(15, 1, 1), PageId(5)))
        );
        assert!(directory.serve(RackId(2), MemoryId(1)).is_err());
    }
}
