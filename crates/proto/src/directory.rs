//! The page directory of the metadata server: which rack is the home of a page.

mod moved;

use alloc::collections::BTreeMap;

use rackpool_model::{MemoryId, PageId, PageRange, RackId};

pub use moved::Moved;

/// The page ids of one memory: a contiguous range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The ids; as many as the memory has frames.
    pub pages: PageRange,
    /// The rack of that memory. It is the home of those of the pages that have never moved.
    pub rack: RackId,
    /// The memory.
    pub memory: MemoryId,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The page's home, and the range around the page for which that holds.
    Home {
        /// A range of pages that have never moved, or one page that has.
        pages: PageRange,
        /// The home.
        rack: RackId,
    },
    /// The home has other memory now; the contents are lost.
    Lost,
    /// No memory has this page id.
    NeverHandedOut,
}

/// Why a record can't be part of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Fewer page ids are left than the memory needs.
    #[error("{frames} page ids are wanted, {left} are left")]
    Exhausted {
        /// Ids needed.
        frames: u32,
        /// Ids left.
        left: u64,
    },
    /// The run is empty, holds page 0, ends past the last id or shares ids with another run.
    #[error("the run of {} pages from {} is empty or overlaps another", .0.pages.count, .0.pages.first)]
    Misplaced(Run),
    /// The memory already has a run.
    #[error("memory {} has two runs, at {} and {}", .0.memory, .0.pages.first, .1)]
    SecondRun(Run, PageId),
    /// The rack serves a memory without a run of that rack.
    #[error("{rack} serves memory {memory}, which has no page ids of that rack")]
    NoRun {
        /// The rack.
        rack: RackId,
        /// The memory.
        memory: MemoryId,
    },
    /// A move of a page that does not exist, or to a memory without a run of that rack.
    #[error("{} has moved to memory {} of {}: there is no such page or no such memory", .0.page, .0.memory, .0.home)]
    MovedNowhere(Moved),
}

/// The page directory. Ids are assigned in ascending order, one run for each memory, and never
/// reused. A rack serves at most one memory; pages that live in other memories of it are lost.
///
/// Memory: about 50 B for each run, however long, and about 70 B for each page that ever moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// By first id.
    runs: BTreeMap<PageId, Run>,
    /// The first id of the run that each rack serves.
    served: BTreeMap<RackId, PageId>,
    moved: BTreeMap<PageId, Moved>,
}

impl Directory {
    /// Returns the run of a memory, lost or not. Takes time linear in the number of runs.
    #[must_use]
    pub fn run_of(&self, memory: MemoryId) -> Option<&Run> {
        self.runs.values().find(|run| run.memory == memory)
    }

    /// Returns the run that a memory without one would get. Changes nothing.
    ///
    /// # Errors
    /// [`DirectoryError::Exhausted`] when fewer than `frames` ids are left.
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

    /// Adds a run: one returned by [`Self::next_run`], or one read from the store in order of ids.
    ///
    /// # Errors
    /// When the run is misplaced, or the memory already has one.
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

    /// Records that the rack serves this memory now. Pages in another memory that it served before
    /// are lost by that.
    ///
    /// # Errors
    /// [`DirectoryError::NoRun`] when the memory has no run of that rack.
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

    /// Records a page's new home.
    ///
    /// # Errors
    /// [`DirectoryError::MovedNowhere`] when the page or the memory is not known.
    pub fn place(&mut self, moved: Moved) -> Result<(), DirectoryError> {
        let is_of_home = |run: &Run| run.memory == moved.memory && run.rack == moved.home;
        // Fast path: mostly the memory is the one that the rack serves.
        let is_known = self.served_by(moved.home).is_some_and(is_of_home)
            || self.run_of(moved.memory).is_some_and(is_of_home);
        if !is_known || self.born(moved.page).is_none() {
            return Err(DirectoryError::MovedNowhere(moved));
        }
        self.moved.insert(moved.page, moved);
        Ok(())
    }

    /// Returns where the page is.
    #[must_use]
    pub fn lookup(&self, page: PageId) -> Lookup {
        match (self.moved.get(&page), self.born(page)) {
            (Some(moved), _) if self.is_gone(moved) => Lookup::Lost,
            (Some(moved), _) => {
                Lookup::Home { pages: PageRange { first: page, count: 1 }, rack: moved.home }
            }
            (None, Some(run)) if self.is_lost(run) => Lookup::Lost,
            (None, Some(run)) => {
                Lookup::Home { pages: self.unmoved_around(run, page), rack: run.rack }
            }
            (None, None) => Lookup::NeverHandedOut,
        }
    }

    /// Returns the page's home, if it has one.
    #[must_use]
    pub fn home(&self, page: PageId) -> Option<RackId> {
        match self.lookup(page) {
            Lookup::Home { rack, .. } => Some(rack),
            Lookup::Lost | Lookup::NeverHandedOut => None,
        }
    }

    /// Returns the run that contains the page's id.
    #[must_use]
    pub fn born(&self, page: PageId) -> Option<&Run> {
        let (_, run) = self.runs.range(..=page).next_back()?;
        run.pages.contains(page).then_some(run)
    }

    /// Returns the page's last move; `None` if it has never moved.
    #[must_use]
    pub fn moved(&self, page: PageId) -> Option<&Moved> {
        self.moved.get(&page)
    }

    /// Returns the number of pages that live in the memory of this run. Takes time linear in the
    /// number of pages that have moved.
    #[must_use]
    pub fn living_in(&self, run: &Run) -> u64 {
        let came = self.moved.values().filter(|moved| moved.memory == run.memory).count() as u64;
        u64::from(run.pages.count) + came - self.moved_of(run)
    }

    /// Returns the run that the rack serves.
    #[must_use]
    pub fn served_by(&self, rack: RackId) -> Option<&Run> {
        self.runs.get(self.served.get(&rack)?)
    }

    /// Returns the number of lost pages. Takes time linear in the number of pages that have moved.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        let lost = self.runs.values().filter(|run| self.is_lost(run));
        let unmoved: u64 = lost.map(|run| u64::from(run.pages.count) - self.moved_of(run)).sum();
        unmoved + self.moved.values().filter(|moved| self.is_gone(moved)).count() as u64
    }

    fn is_lost(&self, run: &Run) -> bool {
        self.served.get(&run.rack) != Some(&run.pages.first)
    }

    fn is_gone(&self, moved: &Moved) -> bool {
        self.served_by(moved.home).is_none_or(|run| run.memory != moved.memory)
    }

    /// The number of pages of the run that have ever moved, including those that moved back.
    fn moved_of(&self, run: &Run) -> u64 {
        let from_first = self.moved.range(run.pages.first..);
        from_first.take_while(|(page, _)| run.pages.contains(**page)).count() as u64
    }

    /// The longest range around `page`, which has never moved, of pages that have never moved.
    fn unmoved_around(&self, run: &Run, page: PageId) -> PageRange {
        let before = self.moved.range(run.pages.first..page).next_back();
        let first = before.map_or(run.pages.first.0, |(before, _)| before.0 + 1);
        let after = self.moved.range(page..).next().map(|(after, _)| *after);
        let after = after.filter(|after| run.pages.contains(*after));
        let count = after
            .map_or_else(|| run.pages.count - (first - run.pages.first.0), |after| after.0 - first);
        PageRange { first: PageId(first), count }
    }

    /// The lowest id above all runs: 1 to 2^32. Page 0 does not exist.
    fn first_free(&self) -> u64 {
        let last = self.runs.values().next_back();
        last.map_or(1, |run| u64::from(run.pages.first.0) + u64::from(run.pages.count))
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::Epoch;
    use rackpool_wire::swap::SwapId;

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

    /// Pages 1 to 10 of memory 1 in rack 1, pages 11 to 20 of memory 2 in rack 2.
    fn two_racks() -> Directory {
        let mut directory = Directory::default();
        for number in [1_u16, 2] {
            let (rack, memory) = (RackId(number), MemoryId(number.into()));
            directory.add(directory.next_run(rack, memory, 10).unwrap()).unwrap();
            directory.serve(rack, memory).unwrap();
        }
        directory
    }

    fn moved(page: u32, home: u16, memory: u128) -> Moved {
        let (page, home, memory) = (PageId(page), RackId(home), MemoryId(memory));
        Moved { page, home, memory, epoch: Epoch::new(1), swap: SwapId(1) }
    }

    fn at(directory: &Directory, page: u32) -> Lookup {
        directory.lookup(PageId(page))
    }

    fn home(first: u32, count: u32, rack: u16) -> Lookup {
        let pages = PageRange { first: PageId(first), count };
        Lookup::Home { pages, rack: RackId(rack) }
    }

    #[test]
    fn an_answer_never_spans_a_page_that_moved() {
        let mut directory = two_racks();
        assert_eq!(at(&directory, 5), home(1, 10, 1));
        directory.place(moved(5, 2, 2)).unwrap();
        assert_eq!(at(&directory, 4), home(1, 4, 1));
        assert_eq!(at(&directory, 5), home(5, 1, 2));
        assert_eq!(at(&directory, 6), home(6, 5, 1));
        directory.place(moved(7, 2, 2)).unwrap();
        assert_eq!(at(&directory, 6), home(6, 1, 1));
        for ends in [1, 10] {
            directory.place(moved(ends, 2, 2)).unwrap();
        }
        assert_eq!(at(&directory, 2), home(2, 3, 1));
        assert_eq!(at(&directory, 9), home(8, 2, 1));
        assert_eq!(at(&directory, 11), home(11, 10, 2));
        directory.place(moved(5, 1, 1)).unwrap();
        assert_eq!(at(&directory, 5), home(5, 1, 1), "back at home");
        assert_eq!(directory.home(PageId(21)), None);
    }

    #[test]
    fn a_memory_takes_with_it_what_lived_in_it_and_not_what_was_born_in_it() {
        let mut directory = two_racks();
        directory.place(moved(5, 2, 2)).unwrap();
        directory.place(moved(12, 1, 1)).unwrap();
        directory.place(moved(6, 1, 1)).unwrap();
        let first = *directory.served_by(RACK).unwrap();
        assert_eq!((directory.living_in(&first), directory.lost_pages()), (10, 0));
        directory.add(directory.next_run(RACK, MemoryId(3), 4).unwrap()).unwrap();
        directory.serve(RACK, MemoryId(3)).unwrap();
        assert_eq!(directory.lost_pages(), 10);
        for lost in [1, 6, 12] {
            assert_eq!(at(&directory, lost), Lookup::Lost);
        }
        assert_eq!(at(&directory, 5), home(5, 1, 2));
        directory.serve(RACK, MemoryId(1)).unwrap();
        assert_eq!(at(&directory, 12), home(12, 1, 1));
        assert_eq!(directory.lost_pages(), 4, "those of the memory that left again");
    }

    #[test]
    fn a_page_cannot_move_to_a_memory_that_the_rack_never_had() {
        let mut directory = two_racks();
        for bad in [moved(1, 1, 2), moved(1, 3, 1), moved(1, 1, 9), moved(21, 1, 1), moved(0, 1, 1)]
        {
            assert_eq!(directory.place(bad), Err(DirectoryError::MovedNowhere(bad)));
        }
        assert_eq!(directory, two_racks());
    }
}
