use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState, PageWord};

use super::{ShareRules, SharingId};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// An event at the home of shared pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareEvent {
    /// Another rack requests a replica.
    Wanted {
        /// The page.
        page: PageId,
        /// Whether the page must not be shared for another reason, such as a swap.
        busy: bool,
    },
    /// A lease for a replica was granted, under [`ShareHome::sharing`].
    Leased(PageId),
    /// A client needs to write or free the page. It waits until the page is live.
    Needed(PageId),
    /// The quiescence that [`ShareAction::Quiesce`] asks for is reached.
    Quiesced(PageId),
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An action for the shell of the home. The shell executes actions in order, before the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareAction {
    /// Store a page word.
    Store(FrameId, PageWord),
    /// Execute a heavy barrier after the last word, then report [`ShareEvent::Quiesced`] once the
    /// writers of this rack, and all leases for writing or a replica, are gone.
    Quiesce(FrameId, PageId),
    /// Cancel the [`Quiesce`](Self::Quiesce) of this page.
    CancelQuiesce(PageId),
}

/// Finds the frame and word of a page of this rack.
type Find<'a> = &'a dyn Fn(PageId) -> Option<FrameWord>;

/// The pages of a rack that are shared.
#[derive(Debug)]
pub struct ShareHome<B = Sound> {
    now: Time,
    rules: ShareRules,
    bugs: B,
    next: u64,
    shared: BTreeMap<PageId, Sharing>,
    rests: BTreeMap<PageId, Rest>,
    actions: VecDeque<ShareAction>,
}

#[derive(Clone, Copy, Debug)]
struct Sharing {
    frame: FrameId,
    id: SharingId,
    step: Step,
    since: Time,
    /// When the last lease for a replica was granted.
    leased: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The word is shared and writers are being quiesced; no replica exists. Quiescence leads to
    /// `Shared`; a write makes the page live again. A crash counts as in `Shared`.
    Begin,
    /// Leases for a replica are granted and nothing is written. A write, or no lease for `idle`,
    /// leads to `End`; so does a restart.
    Shared,
    /// Replicas are being called back and no lease for one is granted. Quiescence makes the page
    /// live. After a crash the next incarnation is in `End` again.
    End,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Time,
    pause: core::time::Duration,
}

impl<B: Bugs> ShareHome<B> {
    /// Restores the machine after a restart. `first` is above every number of earlier incarnations.
    /// The sharing of each page that an earlier incarnation `left` shared ends: its replicas are
    /// called back before the page becomes live.
    pub fn restore(
        now: Time,
        rules: ShareRules,
        first: SharingId,
        left: impl IntoIterator<Item = FrameWord>,
        bugs: B,
    ) -> Self {
        let (rests, shared, actions) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let mut home = Self { now, rules, bugs, next: first.0, shared, rests, actions };
        for FrameWord { frame, word } in left {
            if word.state() != Some(PageState::Shared) {
                continue;
            }
            if home.bugs.has(Bug::ForgetEarlierCopies) {
                home.write(frame, word);
            } else {
                home.begin(frame, word.page(), Step::Shared);
                home.end(word.page());
            }
        }
        home
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, find: Find<'_>, event: ShareEvent) {
        self.now = self.now.max(now);
        match event {
            ShareEvent::Wanted { page, busy } => self.wanted(find, page, busy),
            ShareEvent::Leased(page) => {
                if let Some(sharing) = self.shared.get_mut(&page) {
                    sharing.leased = self.now;
                }
            }
            ShareEvent::Needed(page) => self.needed(find, page),
            ShareEvent::Quiesced(page) => self.quiesced(find, page),
            ShareEvent::DeadlinePassed => self.end_idle(),
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<ShareAction> {
        self.actions.pop_front()
    }

    /// Returns the time when [`ShareEvent::DeadlinePassed`] is due: an idle sharing ends.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.shared.values().filter_map(|sharing| self.idle_at(sharing)).min()
    }

    /// Returns the sharing under which a rack may keep a replica of the page now.
    #[must_use]
    pub fn sharing(&self, page: PageId) -> Option<SharingId> {
        let sharing = self.shared.get(&page)?;
        let hasty = sharing.step == Step::Begin && self.bugs.has(Bug::ShareBeforeQuiesce);
        (sharing.step == Step::Shared || hasty).then_some(sharing.id)
    }

    /// Returns the number of pages in a sharing that begins, lasts or ends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Returns the pages in a sharing that begins or lasts.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        let shared = self.shared.iter().filter(|(_, sharing)| sharing.step != Step::End);
        shared.map(|(page, _)| *page)
    }

    /// Returns true if a sharing is ending.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.shared.values().any(|sharing| sharing.step == Step::End)
    }

    /// Returns true if no page is in a sharing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    fn wanted(&mut self, find: Find<'_>, page: PageId, busy: bool) {
        let (now, worth) = (self.now, self.rules.worth);
        self.rests.retain(|_, rest| rest.until.after(worth) > now);
        let rests = self.rests.get(&page).is_some_and(|rest| rest.until > now);
        let full = self.shared.len() >= self.rules.shared;
        if busy || rests || full || self.shared.contains_key(&page) {
            return;
        }
        let Some(FrameWord { frame, word }) = find(page) else { return };
        let Ok(shared) = word.apply(PageEvent::Shared) else { return };
        self.begin(frame, page, Step::Begin);
        self.actions.push_back(ShareAction::Store(frame, shared));
        self.actions.push_back(ShareAction::Quiesce(frame, page));
    }

    fn begin(&mut self, frame: FrameId, page: PageId, step: Step) {
        let id = SharingId(self.next);
        self.next += 1;
        let (since, leased) = (self.now, self.now);
        self.shared.insert(page, Sharing { frame, id, step, since, leased });
    }

    fn idle_at(&self, sharing: &Sharing) -> Option<Time> {
        let ends = sharing.step == Step::Shared && !self.bugs.has(Bug::ShareForEver);
        ends.then(|| sharing.leased.after(self.rules.idle))
    }

    /// Ends idle sharings, so that free objects of their pages can be allocated, and other pages
    /// shared.
    fn end_idle(&mut self) {
        let is_idle = |sharing: &Sharing| self.idle_at(sharing).is_some_and(|at| self.now >= at);
        let idle = self.shared.iter().filter(|(_, sharing)| is_idle(sharing));
        for page in idle.map(|(page, _)| *page).collect::<Vec<_>>() {
            self.end(page);
        }
    }

    fn needed(&mut self, find: Find<'_>, page: PageId) {
        match self.shared.get(&page).map(|sharing| sharing.step) {
            // No replica exists yet.
            Some(Step::Begin) => {
                self.actions.push_back(ShareAction::CancelQuiesce(page));
                self.thaw(find, page);
            }
            Some(Step::Shared) if self.bugs.has(Bug::ThawWithCopies) => self.thaw(find, page),
            Some(Step::Shared) => self.end(page),
            Some(Step::End) | None => {}
        }
    }

    fn end(&mut self, page: PageId) {
        if let Some(sharing) = self.shared.get_mut(&page) {
            sharing.step = Step::End;
            // Leases for reading stay.
            let quiesce = ShareAction::Quiesce(sharing.frame, page);
            self.actions.push_back(quiesce);
        }
    }

    fn quiesced(&mut self, find: Find<'_>, page: PageId) {
        let (now, sharing) = (self.now, self.shared.get_mut(&page));
        match sharing.map(|sharing| (sharing.step, sharing)) {
            Some((Step::Begin, sharing)) => {
                (sharing.step, sharing.since, sharing.leased) = (Step::Shared, now, now);
            }
            Some((Step::End, _)) => self.thaw(find, page),
            Some((Step::Shared, _)) | None => {}
        }
    }

    /// Makes the page live. It rests for longer if the sharing was short.
    fn thaw(&mut self, find: Find<'_>, page: PageId) {
        let Some(Sharing { frame, since, .. }) = self.shared.remove(&page) else { return };
        let ShareRules { rest, longest_rest, worth, .. } = self.rules;
        let before = self.rests.get(&page).map(|rest| rest.pause);
        let pause = match before {
            Some(before) if self.now.since(since) < worth => before.saturating_mul(2),
            _ => rest,
        };
        let pause = pause.min(longest_rest);
        self.rests.insert(page, Rest { until: self.now.after(pause), pause });
        if let Some(found) = find(page).filter(|found| found.frame == frame) {
            self.write(frame, found.word);
        }
    }

    fn write(&mut self, frame: FrameId, word: PageWord) {
        if word.state() == Some(PageState::Shared)
            && let Ok(live) = word.apply(PageEvent::Thawed)
        {
            self.actions.push_back(ShareAction::Store(frame, live));
        }
    }
}
