//! The history of client operations, and the check that it is linearizable.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{Access, PageId};

/// An operation on one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Read,
    Write(u64),
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd(u64),
}

impl Kind {
    /// Returns true for operations that always run on a processor of the page's home.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd(_))
    }

    /// Returns the word after the operation.
    pub(crate) const fn result(self, before: u64) -> u64 {
        match self {
            Self::Read => before,
            Self::Write(new) => new,
            Self::CompareAndSwap { expected, new } => {
                if expected == before {
                    new
                } else {
                    before
                }
            }
            Self::FetchAndAdd(number) => before.wrapping_add(number),
        }
    }

    /// Returns what the operation returns of the value before it.
    pub(crate) const fn shown(self, before: u64) -> u64 {
        match self {
            Self::Read | Self::CompareAndSwap { .. } | Self::FetchAndAdd(_) => before,
            Self::Write(_) => 0,
        }
    }
}

impl Kind {
    pub(crate) const fn access(self) -> Access {
        match self {
            Self::Read => Access::Read,
            Self::Write(_) | Self::CompareAndSwap { .. } | Self::FetchAndAdd(_) => Access::Write,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) page: PageId,
    pub(crate) word: usize,
    pub(crate) kind: Kind,
    /// Grows with each allocation of the page.
    life: u32,
    begun: u64,
    /// When it was acknowledged, and the value that it returned.
    ended: Option<(u64, u64)>,
    /// The operation was certainly not executed.
    void: bool,
}

/// The most operations on one word: they are bits of a `u128`.
const MAX_OF_A_WORD: usize = 120;
/// The most states that the search visits.
const MAX_STEPS: usize = 8_000_000;

#[derive(Debug, Default)]
pub(crate) struct History {
    operations: Vec<Operation>,
    /// Operations by page, allocation and word.
    counts: BTreeMap<(PageId, u32, usize), usize>,
    lives: BTreeMap<PageId, u32>,
    /// Operations that have not ended, or may never be known to have ended.
    open: BTreeMap<PageId, usize>,
    tick: u64,
}

impl History {
    /// Returns true if another operation on the word can be checked.
    pub(crate) fn has_room(&self, page: PageId, word: usize) -> bool {
        let count = self.counts.get(&(page, self.life(page), word));
        count.is_none_or(|count| *count < MAX_OF_A_WORD)
    }

    /// Returns true if an operation on the page is, or may be, in progress.
    pub(crate) fn is_used(&self, page: PageId) -> bool {
        self.open.get(&page).is_some_and(|count| *count > 0)
    }

    fn close(&mut self, page: PageId) {
        if let Some(count) = self.open.get_mut(&page) {
            *count = count.saturating_sub(1);
        }
    }

    /// The page was allocated: all its words are 0.
    pub(crate) fn begin_life(&mut self, page: PageId) {
        *self.lives.entry(page).or_default() += 1;
    }

    fn life(&self, page: PageId) -> u32 {
        self.lives.get(&page).copied().unwrap_or(0)
    }

    pub(crate) fn begin(&mut self, page: PageId, word: usize, kind: Kind) -> usize {
        self.tick += 1;
        let (life, begun) = (self.life(page), self.tick);
        *self.counts.entry((page, life, word)).or_default() += 1;
        *self.open.entry(page).or_default() += 1;
        self.operations.push(Operation { page, word, kind, life, begun, ended: None, void: false });
        self.operations.len() - 1
    }

    pub(crate) fn acknowledge(&mut self, operation: usize, found: u64) {
        self.tick += 1;
        self.operations[operation].ended = Some((self.tick, found));
        self.close(self.operations[operation].page);
    }

    /// Records that the operation was certainly not executed.
    pub(crate) fn void(&mut self, operation: usize) {
        self.operations[operation].void = true;
        self.close(self.operations[operation].page);
    }

    pub(crate) fn get(&self, operation: usize) -> Operation {
        self.operations[operation]
    }

    /// Returns the numbers of acknowledged and of indeterminate operations.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let known = self.operations.iter().filter(|operation| !operation.void);
        let (ended, open): (Vec<&Operation>, Vec<&Operation>) =
            known.partition(|one| one.ended.is_some());
        (ended.len() as u64, open.len() as u64)
    }

    /// Checks that the operations on each word are linearizable, beginning with 0.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut words: BTreeMap<(PageId, u32, usize), Vec<Operation>> = BTreeMap::new();
        for one in &self.operations {
            let unseen = one.ended.is_none() && one.kind == Kind::Read;
            if !one.void && !unseen {
                words.entry((one.page, one.life, one.word)).or_default().push(*one);
            }
        }
        for ((page, _, word), operations) in words {
            match is_linearizable(&operations) {
                Some(true) => {}
                Some(false) => {
                    return Err(format!(
                        "no order explains the operations on word {word} of {page}: {}",
                        show(&operations)
                    ));
                }
                None => {
                    return Err(format!("word {word} of {page}: more orders than can be judged"));
                }
            }
        }
        Ok(())
    }
}

fn show(operations: &[Operation]) -> String {
    let one = |one: &Operation| match one.ended {
        Some((end, found)) => format!("\n  {}..{end} {:?} found {found}", one.begun, one.kind),
        None => format!("\n  {}.. {:?}, not acknowledged", one.begun, one.kind),
    };
    operations.iter().map(one).collect()
}

/// Wing and Gong's search with memoized states. Returns `None` after too many steps.
fn is_linearizable(operations: &[Operation]) -> Option<bool> {
    let must: u128 =
        (0..operations.len()).filter(|i| operations[*i].ended.is_some()).map(|i| 1 << i).sum();
    let mut seen = BTreeSet::new();
    let mut open = vec![(0_u128, 0_u64)];
    while let Some((done, value)) = open.pop() {
        if done & must == must {
            return Some(true);
        }
        if !seen.insert((done, value)) {
            continue;
        }
        if seen.len() > MAX_STEPS {
            return None;
        }
        let left = |i: &usize| done & (1 << i) == 0;
        let ends = (0..operations.len()).filter(left).filter_map(|i| operations[i].ended);
        let first_end = ends.map(|(end, _)| end).min().unwrap_or(u64::MAX);
        let can_be_next = |i: &usize| {
            let Operation { kind, begun, ended, .. } = operations[*i];
            begun <= first_end && ended.is_none_or(|(_, found)| found == kind.shown(value))
        };
        let next = || (0..operations.len()).filter(left).filter(can_be_next);
        // An operation that returned this value and changed nothing can be ordered here at once.
        let only_saw = |i: &usize| {
            let Operation { kind, ended, .. } = operations[*i];
            let sees = matches!(kind, Kind::Read | Kind::CompareAndSwap { .. });
            ended.is_some() && sees && kind.result(value) == value
        };
        if let Some(i) = next().find(only_saw) {
            open.push((done | 1 << i, value));
            continue;
        }
        for i in next() {
            let result = operations[i].kind.result(value);
            // An unacknowledged operation that changes nothing can be left out.
            if operations[i].ended.is_some() || result != value {
                open.push((done | 1 << i, result));
            }
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId(1);

    #[test]
    fn a_read_may_see_a_write_that_is_under_way_but_not_unsee_it() {
        let mut history = History::default();
        let write = history.begin(PAGE, 0, Kind::Write(7));
        for found in [0, 7] {
            let read = history.begin(PAGE, 0, Kind::Read);
            history.acknowledge(read, found);
        }
        assert_eq!(history.check(), Ok(()));
        let read = history.begin(PAGE, 0, Kind::Read);
        history.acknowledge(read, 0);
        assert!(history.check().is_err());
        history.acknowledge(write, 0);
    }

    #[test]
    fn an_acknowledged_write_cannot_be_lost() {
        let mut history = History::default();
        let write = history.begin(PAGE, 1, Kind::Write(7));
        history.acknowledge(write, 0);
        let read = history.begin(PAGE, 1, Kind::Read);
        history.acknowledge(read, 0);
        assert!(history.check().unwrap_err().contains("word 1 of page 1"));
    }

    #[test]
    fn one_of_two_equal_swaps_of_a_value_wins() {
        let mut history = History::default();
        let kind = |new| Kind::CompareAndSwap { expected: 0, new };
        let (a, b) = (history.begin(PAGE, 0, kind(5)), history.begin(PAGE, 0, kind(6)));
        history.acknowledge(a, 0);
        history.acknowledge(b, 5);
        assert_eq!(history.check(), Ok(()));
        let c = history.begin(PAGE, 0, kind(8));
        history.acknowledge(c, 0);
        assert!(history.check().is_err());
    }

    #[test]
    fn a_page_that_is_allocated_again_says_0() {
        let mut history = History::default();
        let write = history.begin(PAGE, 0, Kind::Write(7));
        history.acknowledge(write, 0);
        history.begin_life(PAGE);
        let read = history.begin(PAGE, 0, Kind::Read);
        history.acknowledge(read, 0);
        assert_eq!(history.check(), Ok(()));
        let read = history.begin(PAGE, 0, Kind::Read);
        history.acknowledge(read, 7);
        assert!(history.check().is_err());
    }

    #[test]
    fn no_two_additions_find_the_same() {
        let mut history = History::default();
        let (a, b) = (
            history.begin(PAGE, 0, Kind::FetchAndAdd(5)),
            history.begin(PAGE, 0, Kind::FetchAndAdd(6)),
        );
        history.acknowledge(a, 6);
        history.acknowledge(b, 0);
        assert_eq!(history.check(), Ok(()));
        let c = history.begin(PAGE, 0, Kind::FetchAndAdd(1));
        history.acknowledge(c, 6);
        assert!(history.check().unwrap_err().contains("FetchAndAdd(1) found 6"));
    }
}
