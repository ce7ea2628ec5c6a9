//! One thread's use of a pool: its slot in the client file, its translations, its calls.

use std::sync::Arc;
use std::time::Instant;

use rackpool_model::{FrameId, GlobalAddr, PageId, PageState, PageWord};
use rackpool_ring::client_file::{Route, ThreadSlot};
use rackpool_shm::OutOfBounds;
use rackpool_shm::access::{AccessGuard, Intent};
use rackpool_shm::window::LocalWindow;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::cache::Magazines;
use crate::calls::Calls;
use crate::connection::Connection;
use crate::translation::{Place, Translation, Translations};
use crate::{AccessError, DaemonError};

/// The state of one thread.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The connection's, to find the thread's state by.
    pub(crate) id: u64,
    pub(crate) window: LocalWindow,
    pub(crate) connection: Arc<Connection>,
    pub(crate) index: u16,
    pub(crate) translations: Translations,
    pub(crate) calls: Calls,
    pub(crate) magazines: Magazines,
    /// Rounds of remote transfers so far.
    pub(crate) batch: u64,
}

/// Bytes of one page that an operation is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: GlobalAddr,
    pub(crate) page: PageId,
    /// Offset in the page.
    pub(crate) offset: u64,
    /// Bytes of the whole operation from here on.
    pub(crate) len: u64,
}

impl Thread {
    pub(crate) fn new(connection: Arc<Connection>) -> Result<Self, DaemonError> {
        let index = connection.take_thread()?;
        let window = Self::window(&connection, index).map_err(|_| DaemonError::Protocol)?;
        let slot = connection.file.thread(index).map_err(|_| DaemonError::Protocol)?;
        let magazines = Magazines::of(slot);
        Ok(Self {
            id: connection.id,
            window,
            index,
            translations: Translations::new(),
            calls: Calls::new(index),
            magazines,
            batch: 0,
            connection,
        })
    }

    fn window(connection: &Connection, index: u16) -> Result<LocalWindow, OutOfBounds> {
        LocalWindow::new(
            Arc::clone(&connection.frames),
            Arc::clone(&connection.metadata),
            &connection.layout,
            Arc::clone(connection.file.memory()),
            connection.file.access_offset(index)?,
            connection.barrier,
        )
    }

    /// The thread's part of the client file.
    #[inline]
    pub(crate) fn slot(&self) -> Result<&ThreadSlot, DaemonError> {
        self.connection.file.thread(self.index).map_err(|_| DaemonError::Protocol)
    }

    /// The page and offset of an address.
    #[inline]
    pub(crate) fn target(&self, addr: GlobalAddr, len: usize) -> Result<Target, AccessError> {
        let size = self.connection.page_size;
        let page = addr.page(size).ok_or(AccessError::InvalidAddress(addr))?;
        Ok(Target { addr, page, offset: addr.offset(size), len: len as u64 })
    }

    /// Where the target lies, having checked that it lies inside what was allocated there.
    pub(crate) fn translate(&mut self, target: &Target) -> Result<Translation, AccessError> {
        let size = self.connection.page_size;
        let available = |known: &Translation| {
            known.page_use(size).span_bytes(size).saturating_sub(target.offset)
        };
        if let Some(known) = self.translations.get(target.page) {
            if target.len <= available(&known) {
                return Ok(known);
            }
            // The page may be used for something larger than when it was remembered.
            self.translations.remove(target.page);
        }
        let known = self.fetch_translation(target)?;
        let available = available(&known);
        if target.len > available {
            let Target { addr, len, .. } = *target;
            return Err(AccessError::BeyondObject { addr, len, available });
        }
        Ok(known)
    }

    /// Whether the page of an address is in this rack.
    pub(crate) fn is_local(&mut self, addr: GlobalAddr) -> Result<bool, AccessError> {
        let target = self.target(addr, 1)?;
        let known = match self.translations.get(target.page) {
            Some(known) => known,
            None => self.fetch_translation(&target)?,
        };
        Ok(matches!(known.place, Place::Local { .. }))
    }

    fn fetch_translation(&mut self, target: &Target) -> Result<Translation, AccessError> {
        let Target { addr, page, .. } = *target;
        let deadline = Instant::now() + self.connection.request_timeout();
        loop {
            let request = RackRequest::Translate { page };
            let (place, usage) = match self.calls.ask(&self.connection, request, Route::Rack)? {
                RackAnswer::Local { frame, word, usage } => (Place::Local { frame, word }, usage),
                RackAnswer::Remote { home, usage } => (Place::Remote { home }, usage),
                RackAnswer::Moved if Instant::now() < deadline => {
                    std::thread::yield_now();
                    continue;
                }
                refusal => return Err(access_error(refusal, addr)),
            };
            let translation = Translation { page, place, usage };
            self.translations.insert(translation);
            return Ok(translation);
        }
    }

    /// Enters a frame of this rack. `Ok(None)`: the page is not there any more, translate again.
    pub(crate) fn enter(
        &self,
        frame: FrameId,
        word: PageWord,
        intent: Intent,
    ) -> Result<Option<AccessGuard<'_>>, AccessError> {
        let mut found = word;
        let deadline = Instant::now() + self.connection.request_timeout();
        loop {
            let same = (found.page(), found.epoch()) == (word.page(), word.epoch());
            match (same, found.state(), intent) {
                (true, Some(PageState::Live), _)
                | (true, Some(PageState::Frozen), Intent::Read) => {
                    let entered = self.window.enter(frame, intent, found);
                    match entered.ok_or(DaemonError::Protocol)? {
                        Ok(guard) => return Ok(Some(guard)),
                        Err(now) => found = now,
                    }
                }
                // Writers wait until the page is thawed or gone.
                (true, Some(PageState::Frozen), Intent::Write) => {
                    if Instant::now() > deadline {
                        return Err(DaemonError::Unavailable.into());
                    }
                    std::thread::yield_now();
                    found = self.window.look(frame).ok_or(DaemonError::Protocol)?;
                }
                _ => return Ok(None),
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
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
        RackAnswer::Indeterminate(rack) => AccessError::Indeterminate(rack),
        RackAnswer::MetadataUnreachable => DaemonError::MetadataUnreachable.into(),
        RackAnswer::Moved => DaemonError::Unavailable.into(),
        RackAnswer::Local { .. }
        | RackAnswer::Remote { .. }
        | RackAnswer::Done(_)
        | RackAnswer::OutOfMemory { .. }
        | RackAnswer::Invalid => DaemonError::Protocol.into(),
    }
}
