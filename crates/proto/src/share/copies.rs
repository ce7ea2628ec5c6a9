use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rackpool_model::{FrameId, PageId, RackId};

use super::{CopyId, ShareRules, SharingId};
use crate::Time;
use crate::lease::{Lease, LeaseKind};
use crate::planted_bugs::{Bug, Bugs, Sound};

/// An event at a rack that keeps replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiesEvent {
    /// Clients read a page of another rack so much that a replica would pay off, and the page does
    /// not move here.
    Wanted(PageId),
    /// A lease of the page is held, and a frame may be free. The shell reports it when a lease is
    /// granted and when a copy has ended.
    Leased {
        /// The page.
        page: PageId,
        /// The lease as its holder has it now.
        lease: Lease,
        /// The end of the lease.
        until: Time,
        /// A free frame without a replica.
        spare: Option<FrameId>,
    },
    /// A copy has ended. Each [`CopiesAction::Copy`] ends in bounded time.
    Copied {
        /// The page.
        page: PageId,
        /// Whether all bytes were copied.
        whole: bool,
    },
    /// The page's home calls its lease back. The shell reports it here before it reports it to the
    /// lease holder.
    Revoked(PageId),
    /// The frame is about to be reused. The shell does not do that while a copy into it is in
    /// flight.
    Taken(FrameId),
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An action for the shell of a rack that keeps replicas. The shell executes it before anything
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiesAction {
    /// Copy the page with one one-sided operation, begun at the lease holder under a lease of the
    /// same sharing. Without such a lease the shell reports the copy as ended.
    Copy {
        /// The page.
        page: PageId,
        /// The sharing.
        sharing: SharingId,
        /// The destination frame in this rack. It stays free, but must not be reused before the
        /// operation has ended.
        ours: FrameId,
    },
    /// Publish the replica: clients may read the frame until `until` on this rack's clock. The
    /// shell stores the time before the number. For a replica that is published already this
    /// extends the time.
    Publish {
        /// The frame.
        ours: FrameId,
        /// The number of the replica.
        copy: CopyId,
        /// The end time.
        until: Time,
    },
    /// Hide the replica: a client that loads the frame's replica number afterwards finds none.
    Hide(FrameId),
}

/// The replicas that a rack keeps of pages of other racks, for reads by its clients.
#[derive(Debug)]
pub struct Copies<B = Sound> {
    now: Time,
    rules: ShareRules,
    bugs: B,
    next: u64,
    wanted: BTreeMap<PageId, Time>,
    paused: BTreeMap<PageId, Time>,
    copies: BTreeMap<PageId, CachedCopy>,
    actions: VecDeque<CopiesAction>,
}

/// A published replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FoundCopy {
    /// The frame that holds it.
    pub frame: FrameId,
    /// Its number.
    pub copy: CopyId,
}

#[derive(Clone, Copy, Debug)]
struct CachedCopy {
    ours: FrameId,
    home: RackId,
    sharing: SharingId,
    state: State,
    /// The end of its last lease.
    until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A copy into the frame is in flight. Its end leads to `Whole` or drops the replica; a call
    /// back to `Doomed`.
    Copying,
    /// A copy is in flight and will be discarded when it ends.
    Doomed,
    /// The copy is complete. The next lease of the same sharing publishes it.
    Whole,
    /// Clients read it until its end time, a call back, or reuse of the frame.
    Published(CopyId),
}

impl<B: Bugs> Copies<B> {
    /// Makes a machine without replicas. Those of an earlier incarnation are in free frames; the
    /// shell has hidden them. `first` is above every number of earlier incarnations.
    pub const fn new(now: Time, rules: ShareRules, first: CopyId, bugs: B) -> Self {
        Self {
            now,
            rules,
            bugs,
            next: first.0,
            wanted: BTreeMap::new(),
            paused: BTreeMap::new(),
            copies: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: CopiesEvent) {
        self.now = self.now.max(now);
        self.give_up_wanting();
        match event {
            CopiesEvent::Wanted(page) => self.want(page),
            CopiesEvent::Leased { page, lease, until, spare } => {
                self.leased(page, lease, until, spare);
            }
            CopiesEvent::Copied { page, whole } => self.copied(page, whole),
            CopiesEvent::Revoked(page) => self.revoked(page),
            CopiesEvent::Taken(frame) => self.drop_where(|cached| cached.ours == frame),
            CopiesEvent::DeadlinePassed => {
                let now = self.now;
                self.drop_where(|cached| now >= cached.until);
            }
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<CopiesAction> {
        self.actions.pop_front()
    }

    /// Returns the time when [`CopiesEvent::DeadlinePassed`] is due: an expired replica is dropped,
    /// and a replica that could not be made is no longer requested.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let ended = self.copies.values().filter(|cached| !cached.is_busy());
        ended.map(|cached| cached.until).chain(self.wanted.values().copied()).min()
    }

    /// Returns true if the lease request should ask for a lease that permits a replica.
    #[must_use]
    pub fn is_wanted(&self, page: PageId) -> bool {
        self.wanted.contains_key(&page) || self.copies.contains_key(&page)
    }

    /// Returns the published replica of a page. After each read the client must check that it is
    /// still published and that its end time has not passed.
    #[must_use]
    pub fn find(&self, now: Time, page: PageId) -> Option<FoundCopy> {
        let cached = self.copies.get(&page).filter(|cached| now < cached.until)?;
        match cached.state {
            State::Published(copy) => Some(FoundCopy { frame: cached.ours, copy }),
            _ => None,
        }
    }

    /// Returns the page whose replica is published in a frame.
    #[must_use]
    pub fn published_in(&self, frame: FrameId) -> Option<PageId> {
        let published = |cached: &CachedCopy| {
            cached.ours == frame && matches!(cached.state, State::Published(_))
        };
        self.copies.iter().find(|(_, cached)| published(cached)).map(|(page, _)| *page)
    }

    /// Returns `Some` if a replica is in this frame, and `Some(true)` while a copy into it is in
    /// flight, so that the frame must not be reused.
    #[must_use]
    pub fn uses(&self, frame: FrameId) -> Option<bool> {
        let mut of_frame = self.copies.values().filter(|cached| cached.ours == frame);
        of_frame.next().map(CachedCopy::is_busy)
    }

    /// Returns true if a replica is not being copied.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        self.copies.values().any(|cached| !cached.is_busy())
    }

    /// Returns the frames into which no copy is in flight.
    #[must_use]
    pub fn idle_frames(&self) -> Vec<FrameId> {
        let idle = self.copies.values().filter(|cached| !cached.is_busy());
        idle.map(|cached| cached.ours).collect()
    }

    /// Returns the number of replicas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Returns true if there are no replicas.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Stops requesting replicas that could not be made in time, and pauses their pages.
    fn give_up_wanting(&mut self) {
        let now = self.now;
        self.paused.retain(|_, until| *until > now);
        let late = self.wanted.extract_if(.., |_, until| *until <= now);
        let pause = now.after(self.rules.pause);
        self.paused.extend(late.map(|(page, _)| (page, pause)));
    }

    fn want(&mut self, page: PageId) {
        let full = self.wanted.len() + self.copies.len() >= self.rules.copies;
        if !full && !self.paused.contains_key(&page) && !self.copies.contains_key(&page) {
            self.wanted.insert(page, self.now.after(self.rules.pause));
        }
    }

    fn leased(&mut self, page: PageId, lease: Lease, until: Time, spare: Option<FrameId>) {
        let LeaseKind::Share(sharing) = lease.kind else { return };
        let home = lease.home;
        let cached = self.copies.get(&page).copied();
        let ours = match cached {
            Some(cached) if cached.is_busy() => return,
            Some(cached) if cached.home == home && self.is_same(cached.sharing, sharing) => {
                return self.show(page, until);
            }
            Some(cached) => {
                self.hide(&cached);
                cached.ours
            }
            None => match spare.filter(|_| self.wanted.contains_key(&page)) {
                Some(spare) => spare,
                None => return,
            },
        };
        self.wanted.remove(&page);
        let state = if self.bugs.has(Bug::ReadHalfACopy) { State::Whole } else { State::Copying };
        self.copies.insert(page, CachedCopy { ours, home, sharing, state, until });
        self.actions.push_back(CopiesAction::Copy { page, sharing, ours });
    }

    fn is_same(&self, cached: SharingId, sharing: SharingId) -> bool {
        cached == sharing || self.bugs.has(Bug::ReadAnOlderCopy)
    }

    fn show(&mut self, page: PageId, until: Time) {
        let Some(cached) = self.copies.get_mut(&page) else { return };
        let copy = match cached.state {
            State::Published(_) if until <= cached.until => return,
            State::Published(copy) => copy,
            _ => {
                self.next += 1;
                CopyId(self.next - 1)
            }
        };
        (cached.state, cached.until) = (State::Published(copy), until);
        self.actions.push_back(CopiesAction::Publish { ours: cached.ours, copy, until });
    }

    fn hide(&mut self, cached: &CachedCopy) {
        if matches!(cached.state, State::Published(_)) {
            self.actions.push_back(CopiesAction::Hide(cached.ours));
        }
    }

    fn copied(&mut self, page: PageId, whole: bool) {
        let Some(cached) = self.copies.get_mut(&page) else { return };
        match cached.state {
            State::Copying if whole => cached.state = State::Whole,
            State::Copying | State::Doomed => {
                self.copies.remove(&page);
                self.paused.insert(page, self.now.after(self.rules.pause));
            }
            State::Whole | State::Published(_) => {}
        }
    }

    fn revoked(&mut self, page: PageId) {
        let Some(cached) = self.copies.get_mut(&page) else { return };
        if self.bugs.has(Bug::AnswerBeforeHiding) {
            return;
        }
        if cached.is_busy() {
            cached.state = State::Doomed;
            return;
        }
        let cached = *cached;
        self.hide(&cached);
        self.copies.remove(&page);
    }

    fn drop_where(&mut self, goes: impl Fn(&CachedCopy) -> bool) {
        let idle = self.copies.iter().filter(|(_, cached)| !cached.is_busy() && goes(cached));
        let gone: Vec<(PageId, CachedCopy)> = idle.map(|(page, cached)| (*page, *cached)).collect();
        for (page, cached) in gone {
            self.hide(&cached);
            self.copies.remove(&page);
        }
    }
}

impl CachedCopy {
    const fn is_busy(&self) -> bool {
        matches!(self.state, State::Copying | State::Doomed)
    }
}
