//! Hotness of the pages that a rack uses.
//!
//! A table of [`Heat`]. It is not a machine: it has no actions and no deadlines.

mod table;

use alloc::collections::BTreeMap;

use rackpool_model::{Access, Heat, HeatRules, HeatRulesError, PageId, Rest};

use crate::Time;
use table::Table;

/// The hotness of pages in one rack: those at home here and those of other racks that clients here
/// use. At most 29 B a page, and about 30 B more for one that has moved here recently.
#[derive(Debug)]
pub struct Heats {
    rules: HeatRules,
    pages: Table,
    rests: BTreeMap<PageId, Rest>,
    /// Where [`Self::forget_some`] continues.
    looked_at: usize,
}

/// The hotness of a page at an access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Its hotness, this access included, in thousandths.
    pub milli: u64,
    /// Whether it is hot.
    pub hot: bool,
    /// Whether it is hot and mostly read.
    pub read_hot: bool,
    /// Whether it is hot and has fewer than [`READS_A_WRITE`] reads a write, so that writes are
    /// expected while it moves.
    pub written: bool,
}

/// Reads per write from which writes count as rare. A page with at least this ratio is worth
/// sharing, since each write invalidates all replicas and each is copied anew; and while such a
/// page moves, most likely no client writes it.
pub const READS_A_WRITE: u32 = 8;

impl Heats {
    /// Makes an empty table.
    ///
    /// # Errors
    /// When a rule is outside its valid range.
    pub fn new(rules: HeatRules) -> Result<Self, HeatRulesError> {
        Self::with_room(rules, 0)
    }

    /// Makes an empty table with room for `pages` pages. With more pages the table grows, in one
    /// step.
    ///
    /// # Errors
    /// When a rule is outside its valid range.
    pub fn with_room(rules: HeatRules, pages: usize) -> Result<Self, HeatRulesError> {
        rules.check()?;
        let pages = Table::with_room(pages);
        Ok(Self { rules, pages, rests: BTreeMap::new(), looked_at: 0 })
    }

    /// Counts `times` accesses to `page` and returns its hotness with them.
    pub fn accessed(&mut self, now: Time, page: PageId, access: Access, times: u32) -> Found {
        let heat = self.pages.entry(page);
        heat.accessed(&self.rules, now.as_nanos(), access, times);
        let heat = *heat;
        self.hotness_of(now, heat)
    }

    /// Returns the hotness of `page` at `now`.
    #[must_use]
    pub fn found(&self, now: Time, page: PageId) -> Found {
        self.hotness_of(now, self.pages.get(page).copied().unwrap_or(Heat::UNUSED))
    }

    fn hotness_of(&self, now: Time, heat: Heat) -> Found {
        let hotness = heat.hotness(&self.rules, now.as_nanos());
        let hot = hotness > self.rules.hot;
        let (reads, writes) = heat.counts();
        Found {
            milli: milli(hotness),
            hot,
            read_hot: hot && heat.is_mostly_read(&self.rules),
            written: hot && reads < writes.saturating_mul(READS_A_WRITE),
        }
    }

    /// Returns reads and writes of `page` since its counters last restarted.
    #[must_use]
    pub fn counts(&self, page: PageId) -> (u32, u32) {
        self.pages.get(page).map_or((0, 0), Heat::counts)
    }

    /// Returns the threshold above which a page is hot, in thousandths.
    #[must_use]
    pub fn hot_milli(&self) -> u64 {
        milli(self.rules.hot)
    }

    /// Restarts the counters of `page`, which was freed: past accesses say nothing about its next
    /// use.
    pub fn freed(&mut self, page: PageId) {
        if self.pages.get(page).is_some() {
            *self.pages.entry(page) = Heat::UNUSED;
        }
    }

    /// Begins the rest of `page`, which has moved here.
    pub fn arrived(&mut self, now: Time, page: PageId) {
        let earlier = self.rests.get(&page).copied();
        let rest = Rest::after_arrival(earlier, &self.rules, now.as_nanos());
        self.rests.insert(page, rest);
    }

    /// Returns true while `page` rests and must not be given away.
    #[must_use]
    pub fn rests(&self, now: Time, page: PageId) -> bool {
        self.rests.get(&page).is_some_and(|rest| rest.lasts(now.as_nanos()))
    }

    /// Drops expired entries. Takes time linear in the size of the table.
    pub fn forget(&mut self, now: Time) {
        self.forget_some(now, usize::MAX);
    }

    /// Drops expired entries among the next `places` places of the table; the next call continues
    /// after them. The caller must cover the whole table within some weeks: after 26 days an unused
    /// entry looks just used.
    pub fn forget_some(&mut self, now: Time, places: usize) {
        let (rules, now) = (&self.rules, now.as_nanos());
        let keep = |heat: &Heat| !heat.is_expired(rules, now);
        let before = self.looked_at;
        self.looked_at = self.pages.retain_some(before, places, keep);
        if self.looked_at <= before {
            // Once a round over the table; there are few rests.
            self.rests.retain(|_, rest| !rest.is_forgotten(rules, now));
        }
    }

    /// Returns every page in the table with its counters, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = (PageId, &Heat)> {
        self.pages.iter()
    }

    /// Returns the number of pages in the table.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns true if the table is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the table in bytes, without the rests.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.bytes()
    }
}

/// Whole thousandths: hotness is at least 1 and below 2^34.
fn milli(hotness: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "the sum of two u32 and 1, times 1000")]
    #[expect(clippy::cast_sign_loss, reason = "at least 1")]
    let milli = (hotness * 1000.0) as u64;
    milli
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const PAGE: PageId = PageId(9);

    #[test]
    fn a_hot_page_is_written_while_it_moves_unless_nearly_all_its_uses_are_reads() {
        let mut heats = Heats::new(HeatRules::DEFAULT).unwrap();
        assert!(!heats.accessed(Time::ZERO, PAGE, Access::Write, 1).written, "it is not hot");
        let mostly_read = heats.accessed(Time::ZERO, PAGE, Access::Read, READS_A_WRITE - 1);
        assert!(mostly_read.hot && mostly_read.read_hot && mostly_read.written);
        assert!(!heats.accessed(Time::ZERO, PAGE, Access::Read, 1).written);
    }

    #[test]
    fn a_page_becomes_hot_by_use_and_is_forgotten_when_it_is_not_used() {
        let mut heats = Heats::new(HeatRules::DEFAULT).unwrap();
        let now = Time::ZERO.after(Duration::from_secs(1));
        let found: [bool; 5] =
            core::array::from_fn(|_| heats.accessed(now, PAGE, Access::Write, 1).hot);
        assert_eq!(found, [false, false, false, true, true]);
        heats.forget(now);
        assert_eq!(heats.len(), 1);
        heats.forget(now.after(Duration::from_secs(101)));
        assert!(heats.is_empty());
        assert_eq!(
            heats.found(now, PAGE),
            Found { milli: 1000, hot: false, read_hot: false, written: false }
        );
    }

    #[test]
    fn what_is_forgotten_bit_by_bit_goes_and_what_is_used_stays() {
        let mut heats = Heats::with_room(HeatRules::DEFAULT, 500).unwrap();
        let later = Time::ZERO.after(Duration::from_secs(101));
        for page in 1..=500 {
            heats.accessed(Time::ZERO, PageId(page), Access::Read, 9);
            heats.arrived(Time::ZERO, PageId(page));
        }
        heats.accessed(later, PAGE, Access::Read, 2);
        (0..100).for_each(|_| heats.forget_some(later, 8));
        assert_eq!(
            heats.iter().map(|(page, heat)| (page, heat.counts())).next(),
            Some((PAGE, (2, 0)))
        );
        assert_eq!(
            (heats.len(), heats.rests.len()),
            (1, 500),
            "rests are forgotten after a lifetime"
        );
        heats.forget(later.after(Duration::from_secs(200)));
        assert!(heats.is_empty() && heats.rests.is_empty());
    }

    #[test]
    fn a_page_that_was_freed_is_cold_whatever_it_was_used_for() {
        let mut heats = Heats::new(HeatRules::DEFAULT).unwrap();
        heats.accessed(Time::ZERO, PAGE, Access::Write, 100);
        heats.freed(PAGE);
        assert_eq!(
            heats.found(Time::ZERO, PAGE),
            Found { milli: 1000, hot: false, read_hot: false, written: false }
        );
        assert!(!heats.accessed(Time::ZERO, PAGE, Access::Write, 1).hot);
        heats.freed(PageId(10));
        assert_eq!(heats.len(), 1, "nothing is noted of a page that nobody has used");
    }

    #[test]
    fn a_page_that_has_come_rests() {
        let mut heats = Heats::new(HeatRules::DEFAULT).unwrap();
        heats.arrived(Time::ZERO, PAGE);
        assert!(heats.rests(Time::ZERO, PAGE));
        assert!(!heats.rests(Time::ZERO.after(Duration::from_secs(1)), PAGE));
        assert!(Heats::new(HeatRules { hot: 0.0, ..HeatRules::DEFAULT }).is_err());
    }
}
