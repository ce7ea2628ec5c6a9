//! One thread's use of a pool: its slot in the client file, its translations, its calls.

use std::num::NonZeroU64;
use std::sync::Arc;

use rackpool_model::{Access, FrameId, GlobalAddr, PageId, PageState, PageWord};
use rackpool_ring::client_file::{RingKind, ThreadSlot};
use rackpool_ring::magazines::Magazines;
use rackpool_ring::objects;
use rackpool_ring::reservation::ReservationRecord;
use rackpool_shm::OutsideMapping;
use rackpool_shm::access::{AccessGuard, AccessIntent};
use rackpool_shm::page_map::PageMap;
use rackpool_shm::window::{LocalWindow, ThreadMemory};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Calls;
use crate::connection::Connection;
use crate::deadline::Retries;
use crate::locks::Claims;
use crate::reservation::Reservations;
use crate::translation::{Place, Translation};
use crate::{AccessError, DaemonError};

/// Number of times that a page word may change during one entry; more changes indicate an error.
const ENTRIES: usize = 8;

/// The state of one thread.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The id of the connection, by which the thread finds this state.
    pub(crate) id: NonZeroU64,
    /// The translation cache of the fast path, for pages in this rack.
    pub(crate) window: LocalWindow,
    pub(crate) connection: Arc<Connection>,
    pub(crate) index: u16,
    translations: PageMap<Translation>,
    pub(crate) calls: Calls,
    pub(crate) magazines: Magazines,
    /// Number of leading outbox cells that may hold an object. The client file is authoritative:
    /// the daemon may have cleared a cell among them.
    pub(crate) outbox: u8,
    pub(crate) reservations: Reservations,
    pub(crate) claims: Claims,
    /// Number of rounds of remote transfers so far.
    pub(crate) batch: u64,
    /// This thread's states at siblings of the daemon.
    pub(crate) siblings: Vec<Self>,
    /// Whether the slot is borrowed for one operation.
    pub(crate) is_borrowed: bool,
}

/// The bytes of one page that an operation accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: GlobalAddr,
    pub(crate) page: PageId,
    /// Offset in the page.
    pub(crate) offset: u64,
    /// Length in bytes of the rest of the operation, from here on; it may go past the page.
    pub(crate) len: u64,
}

/// An announced access to a frame.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    pub(crate) guard: AccessGuard<'a>,
    /// The page word that was found. It differs from the translation's after a freeze or thaw.
    pub(crate) word: PageWord,
}

impl Thread {
    /// A thread state with a slot of its own. Returns `None` if no such slot is left.
    pub(crate) fn new(connection: &Arc<Connection>) -> Result<Option<Self>, DaemonError> {
        let calls = connection.take_thread()?;
        calls.map(|calls| Self::over(Arc::clone(connection), calls)).transpose()
    }

    /// A thread state with a borrowed slot, which must be returned soon.
    pub(crate) fn borrowing(connection: &Arc<Connection>) -> Result<Self, DaemonError> {
        let mut thread = Self::over(Arc::clone(connection), connection.borrow_thread()?)?;
        thread.is_borrowed = true;
        Ok(thread)
    }

    fn over(connection: Arc<Connection>, calls: Calls) -> Result<Self, DaemonError> {
        let index = calls.thread();
        let window = Self::window(&connection, index).map_err(|_| DaemonError::Protocol)?;
        let magazines =
            Magazines::new(&connection.file, index).map_err(|_| DaemonError::Protocol)?;
        // An earlier thread may have left objects there while the daemon was down.
        let outbox = objects::extent(&magazines.slot().outbox);
        let reservations = Reservations::of(magazines.slot());
        Ok(Self {
            id: connection.id,
            window,
            index,
            translations: PageMap::new(),
            calls,
            magazines,
            outbox: u8::try_from(outbox).unwrap_or(u8::MAX),
            reservations,
            claims: Claims::default(),
            batch: 0,
            siblings: Vec::new(),
            is_borrowed: false,
            connection,
        })
    }

    fn window(connection: &Connection, index: u16) -> Result<LocalWindow, OutsideMapping> {
        let memory = ThreadMemory {
            file: Arc::clone(connection.file.memory()),
            offsets: connection.file.offsets(index)?,
        };
        LocalWindow::new(
            Arc::clone(&connection.frames),
            Arc::clone(&connection.metadata),
            &connection.layout,
            connection.marks.clone(),
            memory,
            connection.barrier,
            connection.latency,
        )
    }

    /// Makes this thread's window and magazines the ones that its fast paths use.
    pub(crate) fn bring_to_front(&self) {
        // Without them every access of a checked client takes the slow path.
        if self.is_checked() {
            return;
        }
        self.window.bring_to_front(self.id);
        self.magazines.bring_to_front(self.id);
    }

    /// The thread's part of the client file.
    #[inline]
    pub(crate) fn slot(&self) -> &ThreadSlot {
        self.magazines.slot()
    }

    /// One of the thread's reservation records.
    #[inline]
    pub(crate) fn record(&self, record: u8) -> Option<&ReservationRecord> {
        self.slot().reservations.get(usize::from(record))
    }

    /// Splits an address into page and offset. Fails if it belongs to no page.
    #[inline]
    pub(crate) fn target(&self, addr: GlobalAddr, len: usize) -> Result<Target, AccessError> {
        let size = self.connection.page_size;
        let page = addr.page(size).ok_or(AccessError::InvalidAddress(addr))?;
        Ok(Target { addr, page, offset: addr.offset(size), len: len as u64 })
    }

    /// A round trip to the daemon.
    pub(crate) fn ping(&mut self) -> Result<(), DaemonError> {
        match self.calls.ask(&self.connection, RackRequest::Ping, RingKind::Rack)? {
            RackAnswer::Done(_) => Ok(()),
            _ => Err(DaemonError::Protocol),
        }
    }

    /// The remembered translation of a page.
    pub(crate) fn known(&self, page: PageId) -> Option<Translation> {
        self.translations.get(u64::from(page.0)).copied()
    }

    pub(crate) fn remember(&mut self, page: PageId, translation: Translation) {
        self.translations.insert(u64::from(page.0), translation);
        self.show(page, &translation);
    }

    /// Updates the window's entry for a page.
    pub(crate) fn show(&mut self, page: PageId, translation: &Translation) {
        match translation.place {
            Place::Local { frame, word } => {
                let usage = translation.page_use(self.connection.page_size);
                self.window.admit(page, frame, word, usage);
            }
            Place::Copied { frame, copy, .. } => self.window.keep(page, frame, copy),
            Place::Remote { .. } | Place::Sibling { .. } => self.window.forget(page),
        }
    }

    /// Removes all that is remembered of a page.
    pub(crate) fn forget(&mut self, page: PageId) {
        self.translations.remove(u64::from(page.0));
        self.window.forget(page);
    }

    /// Returns the translation of the target's page. Fails unless the target lies inside the
    /// allocation. A page that is not remembered is looked up at the daemon, for the access that
    /// `intent` names.
    pub(crate) fn translate(
        &mut self,
        target: &Target,
        intent: AccessIntent,
    ) -> Result<Translation, AccessError> {
        let size = self.connection.page_size;
        let available = |known: &Translation| {
            known.page_use(size).span_bytes(size).saturating_sub(target.offset)
        };
        if let Some(known) = self.known(target.page) {
            if target.len <= available(&known) {
                return Ok(known);
            }
            // The page may have been freed and reused for a larger object since.
            self.forget(target.page);
        }
        let known = self.fetch_translation(target, intent)?;
        let available = available(&known);
        if target.len > available {
            let Target { addr, len, .. } = *target;
            return Err(AccessError::BeyondObject { addr, len, available });
        }
        Ok(known)
    }

    /// Returns true if the page of an address is in this rack.
    pub(crate) fn is_local(&mut self, addr: GlobalAddr) -> Result<bool, AccessError> {
        Ok(matches!(self.place_of(addr)?, Place::Local { .. } | Place::Sibling { .. }))
    }

    /// Returns true if the page of an address is in the part of the own daemon.
    pub(crate) fn is_in_own_part(&mut self, addr: GlobalAddr) -> Result<bool, AccessError> {
        Ok(matches!(self.place_of(addr)?, Place::Local { .. }))
    }

    fn place_of(&mut self, addr: GlobalAddr) -> Result<Place, AccessError> {
        let target = self.target(addr, 1)?;
        let known = match self.known(target.page) {
            Some(known) => known,
            None => self.fetch_translation(&target, AccessIntent::Read)?,
        };
        Ok(known.place)
    }

    /// Asks the daemon where a page is. The daemon answers once the page allows the access, so a
    /// swap in progress may delay the answer.
    fn fetch_translation(
        &mut self,
        target: &Target,
        intent: AccessIntent,
    ) -> Result<Translation, AccessError> {
        let Target { addr, page, .. } = *target;
        let access = match intent {
            AccessIntent::Read => Access::Read,
            AccessIntent::Write => Access::Write,
        };
        let retries = Retries::within(self.connection.request_timeout());
        loop {
            let request = RackRequest::Translate { page, access };
            let (place, usage) = match self.calls.ask(&self.connection, request, RingKind::Rack)? {
                RackAnswer::Local { frame, word, usage } => (Place::Local { frame, word }, usage),
                RackAnswer::Remote { home, usage } => {
                    (self.place_at(home, Place::Remote { home }), usage)
                }
                RackAnswer::Copied { home, usage, frame, copy } => {
                    (self.place_at(home, Place::Copied { home, frame, copy }), usage)
                }
                // The page moves again, or for longer than the daemon parks requests.
                RackAnswer::Moved | RackAnswer::PageBusy(_) if retries.pause() => continue,
                RackAnswer::Moved => return Err(self.page_busy(addr)),
                refusal => return Err(access_error(refusal, addr)),
            };
            let translation = Translation { place, usage };
            // `home` is the own rack if the daemon writes a page that is moving. That state is
            // short, so it is not remembered. Neither is a sibling that can't be reached.
            let is_passing =
                |home| home == self.connection.rack || self.connection.siblings.has(home);
            if !matches!(place, Place::Remote { home } if is_passing(home)) {
                self.remember(page, translation);
            }
            return Ok(translation);
        }
    }

    /// The error for a page that stayed inaccessible until the timeout.
    pub(crate) fn page_busy(&self, addr: GlobalAddr) -> AccessError {
        AccessError::PageBusy(addr, self.connection.rack)
    }

    /// Returns true if the page that had `word` is still in this frame and is frozen or leaving: it
    /// moves or has just moved.
    pub(crate) fn moves_here(&self, frame: FrameId, word: PageWord) -> bool {
        self.window.look(frame).is_some_and(|now| {
            let same = (now.page(), now.epoch()) == (word.page(), word.epoch());
            same && matches!(now.state(), Some(PageState::Frozen | PageState::Leaving))
        })
    }

    /// Writes to a dirty-logged page of this rack and logs the lines. Returns the page word under
    /// which it wrote, or `None`, with nothing written, if the daemon must be asked.
    pub(crate) fn write_dirty_logged(
        &self,
        frame: FrameId,
        word: PageWord,
        offset: u64,
        from: &[u8],
    ) -> Result<Option<PageWord>, AccessError> {
        let Some(now) = self.window.look(frame) else { return Ok(None) };
        if !now.is_dirty_logged() || (now.page(), now.epoch()) != (word.page(), word.epoch()) {
            return Ok(None);
        }
        let Some(Ok(guard)) = self.window.enter_dirty_logged(frame, now) else { return Ok(None) };
        if self.is_under_lost_lock() {
            return Err(AccessError::LockLost(self.locked_addr()));
        }
        if !self.slot().lines.note(frame, offset, from.len()) {
            return Ok(None);
        }
        let at = u64::from(frame.0) * self.connection.page_size.bytes() + offset;
        self.connection.frames.write(at, from).map_err(|_| DaemonError::Protocol)?;
        drop(guard);
        Ok(Some(now))
    }

    /// Announces access to the frame of a translation, if its page is still there and allows the
    /// access; a frozen page can be read. Returns `Ok(None)` if the daemon must be
    /// asked again for this intent.
    pub(crate) fn enter(
        &self,
        frame: FrameId,
        word: PageWord,
        intent: AccessIntent,
    ) -> Result<Option<Entered<'_>>, AccessError> {
        let mut found = word;
        if !may_enter(found, word, intent) {
            found = self.window.look(frame).ok_or(DaemonError::Protocol)?;
        }
        for _ in 0..ENTRIES {
            if !may_enter(found, word, intent) {
                break;
            }
            match self.window.enter(frame, intent, found).ok_or(DaemonError::Protocol)? {
                Ok(_) if self.is_under_lost_lock() => {
                    return Err(AccessError::LockLost(self.locked_addr()));
                }
                Ok(guard) => return Ok(Some(Entered { guard, word: found })),
                Err(now) => found = now,
            }
        }
        Ok(None)
    }
}

/// Returns true if `found` is a word of the same page and epoch as `known` and its state allows
/// `intent`.
pub(crate) fn may_enter(found: PageWord, known: PageWord, intent: AccessIntent) -> bool {
    let same = (found.page(), found.epoch()) == (known.page(), known.epoch());
    let open = match found.state() {
        Some(PageState::Live) => true,
        Some(PageState::Frozen | PageState::Shared) => intent == AccessIntent::Read,
        _ => false,
    };
    same && open
}

impl Drop for Thread {
    fn drop(&mut self) {
        // In a forked child the slot and the objects noted in it belong to the parent.
        if self.connection.is_inherited() {
            return;
        }
        self.unlock_everything();
        self.window.clear();
        self.give_back_everything();
        let calls = std::mem::replace(&mut self.calls, Calls::none(self.index));
        self.connection.return_thread(calls);
    }
}

/// The error for an answer that refuses an access.
pub(crate) fn access_error(answer: RackAnswer, addr: GlobalAddr) -> AccessError {
    match answer {
        RackAnswer::NotAllocated => AccessError::NotAllocated(addr),
        RackAnswer::PageLost => AccessError::PageLost(addr),
        RackAnswer::RackUnavailable(rack) => AccessError::RackUnavailable(rack),
        RackAnswer::PageBusy(rack) => AccessError::PageBusy(addr, rack),
        RackAnswer::Indeterminate(rack) => AccessError::Indeterminate(rack),
        RackAnswer::MetadataUnreachable => DaemonError::MetadataUnreachable.into(),
        // Callers that may retry do so before they come here.
        RackAnswer::Moved => DaemonError::Unavailable.into(),
        RackAnswer::LockLost => AccessError::LockLost(addr),
        RackAnswer::Local { .. }
        | RackAnswer::Lock { .. }
        | RackAnswer::Remote { .. }
        | RackAnswer::Copied { .. }
        | RackAnswer::Done(_)
        | RackAnswer::DoneAt(_)
        | RackAnswer::OutOfMemory { .. }
        | RackAnswer::TooLarge { .. }
        | RackAnswer::Extent { .. }
        | RackAnswer::Invalid => DaemonError::Protocol.into(),
    }
}
