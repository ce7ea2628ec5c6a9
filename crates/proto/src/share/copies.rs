use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rackpool_model::{FrameId, PageId, RackId};

use super::{CopyId, ShareRules, SharingId};
use crate::Time;
use crate::lease::{Lease, LeaseKind};
use crate::planted::{Bug, Bugs, Sound};

/// What has happened at a rack that keeps copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiesEvent {
    /// A page of another rack is read so often that a copy would be worth it, and does not move
    /// here.
    Wanted(PageId),
    /// There is a lease of a page, and perhaps a free frame. Told when a lease was given, and when
    /// a copy has ended.
    Leased {
        /// The page.
        page: PageId,
        /// What its holder says now.
        lease: Lease,
        /// Until when it is good.
        until: Time,
        /// A free frame that has no copy yet.
        spare: Option<FrameId>,
    },
    /// A copy has ended. Each [`CopiesAction::Copy`] ends, in bounded time.
    Copied {
        /// The page.
        page: PageId,
        /// Whether all bytes are there.
        whole: bool,
    },
    /// The page's home calls leases back. Told before their holder is.
    Revoked(PageId),
    /// The frame is about to be given to somebody else. Never while a copy into it is under way.
    Taken(FrameId),
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
}

/// What the shell of a rack that keeps copies has to do, before it does anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiesAction {
    /// Read the page with one one-sided operation, begun with the lease's holder under a lease of
    /// the same sharing; if there is none the copy has ended.
    Copy {
        /// The page.
        page: PageId,
        /// What it is shared under.
        sharing: SharingId,
        /// A frame of this rack. It stays free, but is not given away before the operation has
        /// ended.
        ours: FrameId,
    },
    /// Let clients read the frame until then, by the clock of this machine: the time is stored
    /// before the number. A copy that is published already is published for longer.
    Publish {
        /// The frame.
        ours: FrameId,
        /// Which copy this is.
        copy: CopyId,
        /// Until when.
        until: Time,
    },
    /// Let nobody read the frame any more: whoever looks at its number after this finds none.
    Hide(FrameId),
}

/// Copies of pages of other racks, for the reads of this rack's clients.
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

#[derive(Clone, Copy, Debug)]
struct CachedCopy {
    ours: FrameId,
    home: RackId,
    sharing: SharingId,
    state: State,
    /// When the last lease of it ends.
    until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An operation into the frame is under way.
    Copying,
    /// The same, and what it brings is not wanted any more.
    Doomed,
    /// All bytes are there.
    Whole,
    /// Clients read it.
    Published(CopyId),
}

impl<B: Bugs> Copies<B> {
    /// No copies: those of an earlier life lie in frames that are free, and are hidden. `first` is
    /// above every number of earlier lives.
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

    /// Takes in what has happened.
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

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<CopiesAction> {
        self.actions.pop_front()
    }

    /// When [`CopiesEvent::DeadlinePassed`] is due: a copy that nobody asks a lease for is dropped,
    /// and one that could not be had is not wanted any more.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let ended = self.copies.values().filter(|cached| !cached.is_busy());
        ended.map(|cached| cached.until).chain(self.wanted.values().copied()).min()
    }

    /// Whether the home is to be asked for a lease that is good for a copy.
    #[must_use]
    pub fn is_wanted(&self, page: PageId) -> bool {
        self.wanted.contains_key(&page) || self.copies.contains_key(&page)
    }

    /// The copy that clients may read, as long as it is published. Each time somebody reads it he
    /// looks whether it still is, and whether its time is over, after he has read.
    #[must_use]
    pub fn find(&self, now: Time, page: PageId) -> Option<(FrameId, CopyId)> {
        let cached = self.copies.get(&page).filter(|cached| now < cached.until)?;
        match cached.state {
            State::Published(copy) => Some((cached.ours, copy)),
            _ => None,
        }
    }

    /// The page whose copy is published in a frame.
    #[must_use]
    pub fn shown_in(&self, frame: FrameId) -> Option<PageId> {
        let published = |cached: &CachedCopy| {
            cached.ours == frame && matches!(cached.state, State::Published(_))
        };
        self.copies.iter().find(|(_, cached)| published(cached)).map(|(page, _)| *page)
    }

    /// Whether a copy lies in this frame, or is on its way into it: `Some(true)` as long as the
    /// frame must not be given away.
    #[must_use]
    pub fn uses(&self, frame: FrameId) -> Option<bool> {
        let mut of_frame = self.copies.values().filter(|cached| cached.ours == frame);
        of_frame.next().map(CachedCopy::is_busy)
    }

    /// How many copies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Copies that could not be had in time are left alone for a while.
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
