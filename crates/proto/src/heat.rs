//! How much this rack uses which page.
//!
//! A table around [`Heat`]; no machine: it has nothing to do on its own.

mod table;

use alloc::collections::BTreeMap;

use rackpool_model::{Access, Heat, HeatRules, HeatRulesError, PageId, Rest};

use crate::Time;
use table::Table;

/// The hotness of pages in one rack: those at home here and those used from afar. At most 29 B a
/// page, and some 30 B more for one that has moved here lately.
#[derive(Debug)]
pub struct Heats {
    rules: HeatRules,
    pages: Table,
    rests: BTreeMap<PageId, Rest>,
    /// Where [`Self::forget_some`] goes on.
    looked_at: usize,
}

/// How hot an access has found its page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Its hotness with this access, in thousandths.
    pub milli: u64,
    /// Whether it is hot.
    pub hot: bool,
    /// Whether it is hot and mostly read.
    pub read_hot: bool,
    /// Whether it is hot and written so often that somebody will while it moves.
    pub written: bool,
}

/// A page that is read at least so often for each time it is written is hardly written: where
/// copies of it are read a write waits for all of them, and each is copied anew; and while it moves
/// most likely nobody writes it.
pub const READS_A_WRITE: u32 = 8;

impl Heats {
    /// Nothing has been used yet.
    ///
    /// # Errors
    /// When the rules can't be meant.
    pub fn new(rules: HeatRules) -> Result<Self, HeatRulesError> {
        Self::with_room(rules, 0)
    }

    /// The same, with room for so many pages: it is made larger when there are more, all at once.
    ///
    /// # Errors
    /// When the rules can't be meant.
    pub fn with_room(rules: HeatRules, pages: usize) -> Result<Self, HeatRulesError> {
        rules.check()?;
        let pages = Table::with_room(pages);
        Ok(Self { rules, pages, rests: BTreeMap::new(), looked_at: 0 })
    }

    /// Counts `times` accesses to `page`.
    pub fn accessed(&mut self, now: Time, page: PageId, access: Access, times: u32) -> Found {
        let heat = self.pages.entry(page);
        heat.accessed(&self.rules, now.as_nanos(), access, times);
        let heat = *heat;
        self.judge(now, heat)
    }

    /// How hot `page` is now.
    #[must_use]
    pub fn found(&self, now: Time, page: PageId) -> Found {
        self.judge(now, self.pages.get(page).copied().unwrap_or(Heat::UNUSED))
    }

    fn judge(&self, now: Time, heat: Heat) -> Found {
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

    /// Reads and writes of `page` since its counters last restarted.
    #[must_use]
    pub fn counts(&self, page: PageId) -> (u32, u32) {
        self.pages.get(page).map_or((0, 0), Heat::counts)
    }

    /// Above this a page is hot, in thousandths.
    #[must_use]
    pub fn hot_milli(&self) -> u64 {
        milli(self.rules.hot)
    }

    /// `page` is free now: how much it was used says nothing about what it will be used for next.
    pub fn freed(&mut self, page: PageId) {
        if self.pages.get(page).is_some() {
            *self.pages.entry(page) = Heat::UNUSED;
        }
    }

    /// `page` has moved here: it rests.
    pub fn arrived(&mut self, now: Time, page: PageId) {
        let earlier = self.rests.get(&page).copied();
        let rest = Rest::after_arrival(earlier, &self.rules, now.as_nanos());
        self.rests.insert(page, rest);
    }

    /// Whether `page` rests and is not to be given away.
    #[must_use]
    pub fn rests(&self, now: Time, page: PageId) -> bool {
        self.rests.get(&page).is_some_and(|rest| rest.lasts(now.as_nanos()))
    }

    /// Drops what says nothing any more. Takes time for each page that is known.
    pub fn forget(&mut self, now: Time) {
        self.forget_some(now, usize::MAX);
    }

    /// The same for a part: it looks at `places` places of the table, and goes on there the next
    /// time. All must be looked at within some weeks, or what is old looks new again.
    pub fn forget_some(&mut self, now: Time, places: usize) {
        let (rules, now) = (&self.rules, now.as_nanos());
        let keep = |heat: &Heat| !heat.is_expired(rules, now);
        let before = self.looked_at;
        self.looked_at = self.pages.retain_some(before, places, keep);
        if self.looked_at <= before {
            // Once round: these are few.
            self.rests.retain(|_, rest| !rest.is_forgotten(rules, now));
        }
    }

    /// Every page that is known, with what is counted of it, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (PageId, &Heat)> {
        self.pages.iter()
    }

    /// How many pages are known.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether no page is known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that this takes, without the pages that rest.
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
