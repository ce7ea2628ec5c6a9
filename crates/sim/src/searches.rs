//! Checks of the search for pages: a caller is answered in its time (C11), is not told that a page
//! is not allocated which was (C12), nor that a dead rack has a page which is elsewhere (C13); and
//! a search waits for a question that is under way (C14).

use rackpool_model::{FrameWord, PageId, PageState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_wire::rack::RackAnswer;

use crate::message::Call;
use crate::rules::{FRAMES, LEASE_NS, MILLI, RACKS, USED};
use crate::world::World;

/// A client's call for which its rack searches a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Searching {
    since: u64,
    /// Where the page was last readable, when the search began.
    lived: Option<(usize, u32, u32)>,
}

/// The time of a caller, by the slowest clock, and of the steps after it.
const LONGEST: u64 = LEASE_NS + LEASE_NS / 100 + 5 * MILLI;

impl<B: Bugs> World<B> {
    pub(crate) fn search_begins(&mut self, rack: usize, call: Call) {
        let page = self.history.get(call.operation).page;
        let (since, lived) = (self.now, self.lived.get(&page).copied());
        self.seen.searched += 1;
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.searching.insert(call, Searching { since, lived });
        }
    }

    /// Checks the answer of a search.
    pub(crate) fn check_search(&mut self, rack: usize, call: Call, answer: RackAnswer) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let unreached = daemon.unreached;
        let Some(searching) = daemon.searching.remove(&call) else {
            return self.breaks(|| format!("rack {rack} answers {call:?}, which does not wait"));
        };
        self.check_time(rack, call, searching);
        let page = self.history.get(call.operation).page;
        let is_found = matches!(answer, RackAnswer::Remote { .. } | RackAnswer::Copied { .. });
        self.seen.unfound += u64::from(!is_found && answer != RackAnswer::Moved);
        match answer {
            RackAnswer::NotAllocated => {
                let allocated = self.allocated_since.get(&page);
                if allocated.is_some_and(|since| *since <= searching.since) && !self.is_stuck(page)
                {
                    self.breaks(|| {
                        format!("{call:?} is told that {page} is not allocated, which it was")
                    });
                }
            }
            // Without the metadata server a rack believes what it knew before.
            RackAnswer::RackUnavailable(home) if unreached < searching.since => {
                self.check_unavailable(page, usize::from(home.0), searching);
            }
            _ => {}
        }
    }

    /// A rack that is named before a caller's time is over is dead and the page's home.
    fn check_unavailable(&mut self, page: PageId, home: usize, searching: Searching) {
        // Free pages change their homes without being readable.
        let allocated = self.allocated_since.get(&page);
        if allocated.is_none_or(|since| *since > searching.since) || self.is_stuck(page) {
            return;
        }
        let lived = self.lived.get(&page).copied();
        let Some((lives, ..)) = lived.filter(|_| lived == searching.lived) else { return };
        let is_it = |found: FrameWord| {
            found.word.page() == page && found.word.state() != Some(PageState::Free)
        };
        let is_there = self.racks.get(home).is_some_and(|rack| rack.memory.all().any(is_it));
        let is_early = self.now - searching.since < LEASE_NS * 9 / 10;
        if is_early && lives != home && !is_there {
            if std::env::var("TRACE").is_ok() {
                for (r, rack) in self.racks.iter().enumerate() {
                    for f in rack.memory.all() {
                        if f.word.page() == page {
                            eprintln!(
                                "rack {r}: {f:?} {:?} damaged {} epoch {:?} dir {:?}",
                                f.word.state(),
                                self.is_damaged(r),
                                f.word.epoch(),
                                self.server.disk.home(page)
                            );
                        }
                    }
                }
                eprintln!("{searching:?} {lived:?} now {}", self.now);
            }
            self.breaks(|| format!("rack {home} is said to be dead with {page} of rack {lives}"));
        }
    }

    /// A rack that was stopped for long gives each caller its whole time again, once.
    fn check_time(&mut self, rack: usize, call: Call, searching: Searching) {
        let since = searching.since;
        let pauses = self.racks[rack].pauses.iter().filter(|(_, until)| *until > since);
        let pauses = pauses.map(|(from, until)| (*until).min(self.now) - (*from).max(since));
        let (stopped, longest) = pauses.fold((0, 0), |(sum, most), one| (sum + one, one.max(most)));
        // The rack looks each eighth of a lease.
        let times = if longest > LEASE_NS / 10 { 2 } else { 1 };
        if self.now > since + times * LONGEST + stopped {
            let waited = (self.now - since) / MILLI;
            self.breaks(|| format!("{call:?} waits for rack {rack} for {waited} ms"));
        }
    }

    /// Checks the searches of a rack that has executed all actions.
    pub(crate) fn check_searches(&mut self, rack: usize) {
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let asks_server = |question| node.link.as_ref().is_some_and(|link| link.asks(question));
        let mut awaited = daemon.machine.awaited_questions();
        let is_under_way =
            |question: &u64| daemon.asked.contains_key(question) || asks_server(*question);
        if let Some(question) = awaited.find(|question| !is_under_way(question)) {
            drop(awaited);
            self.breaks(|| format!("rack {rack} waits for question {question}, which has ended"));
        }
    }

    /// Checks that no caller has waited too long.
    pub(crate) fn check_waiting(&mut self, rack: usize) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        let searching = daemon.searching.iter().map(|(call, one)| (*call, *one));
        for (call, searching) in searching.collect::<Vec<_>>() {
            self.check_time(rack, call, searching);
        }
    }

    /// Returns a page that is not allocated, or of a rack that has not joined yet.
    pub(crate) fn unallocated_page(&mut self) -> Option<PageId> {
        let (rack, number) = (self.rng.below(RACKS), self.rng.below((FRAMES - USED) as usize));
        let number = u32::try_from(number).ok()?;
        let page = match self.racks[rack].pages {
            Some(pages) => PageId(pages.first.0 + USED + number),
            None => {
                let ends = self.racks.iter().filter_map(|rack| rack.pages);
                PageId(ends.map(|pages| pages.first.0 + pages.count).max()? + number)
            }
        };
        (!self.allocated_since.contains_key(&page)).then_some(page)
    }
}
