//! Allocation from, and freeing into, the thread's magazines in the client file.
//!
//! Wherever an object is between the daemon and the program it stands in exactly one array of the
//! thread's slot, or for an instant in two; the daemon counts it once when it cleans up after a
//! client. So each step here is one store, and dying between two steps loses nothing.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::{EXCHANGE, MAGAZINE, MAGAZINE_CLASSES, Route, ThreadSlot};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::thread::Thread;
use crate::thread::{Target, access_error};
use crate::translation::{Place, Translation};
use crate::{AccessError, AllocError, DaemonError, FreeError};

/// Bytes that a magazine may hold: of large objects it holds fewer.
const MAGAZINE_BYTES: u64 = 1 << 20;
/// Objects at least this large go back to the daemon at once when they belong to another rack.
const PROMPT_BYTES: u64 = 4096;
/// Objects of other racks that are given back together.
const REMOTE_BATCH: u8 = 32;
/// An outbox without room.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const FULL: u8 = EXCHANGE as u8;

/// How full the thread's arrays are. The truth is in the client file; these are counts of it.
#[derive(Debug)]
pub(crate) struct Magazines {
    counts: [u8; MAGAZINE_CLASSES],
    outbox: u8,
}

impl Magazines {
    /// Counts what stands in the slot: nothing, or what a thread left there that ended while the
    /// daemon was away.
    pub(crate) fn of(slot: &ThreadSlot) -> Self {
        let mut counts = [0; MAGAZINE_CLASSES];
        for (count, magazine) in counts.iter_mut().zip(&slot.magazines) {
            *count = close_ranks(magazine);
        }
        Self { counts, outbox: close_ranks(&slot.outbox) }
    }
}

/// Moves the objects of an array to its front; returns how many there are. An object stands in two
/// places for an instant, and never in none.
fn close_ranks(cells: &[AtomicU64]) -> u8 {
    let mut count = 0_u8;
    for (index, cell) in cells.iter().enumerate() {
        let object = cell.load(Ordering::Relaxed);
        if object != 0 {
            if usize::from(count) != index {
                cells[usize::from(count)].store(object, Ordering::Release);
                cell.store(0, Ordering::Release);
            }
            count += 1;
        }
    }
    count
}

/// Whether objects stay in the outbox for now because a rack or the metadata server is away.
const fn is_away(error: &AccessError) -> bool {
    matches!(
        error,
        AccessError::RackUnavailable(_) | AccessError::Daemon(DaemonError::MetadataUnreachable)
    )
}

/// How many objects of a class a magazine holds; 0 for classes that are not cached.
fn capacity(class: SizeClass) -> u8 {
    if usize::from(class.index()) >= MAGAZINE_CLASSES {
        return 0;
    }
    let by_bytes = (MAGAZINE_BYTES >> class.bits()).min(MAGAZINE as u64);
    u8::try_from(by_bytes).unwrap_or(0)
}

fn take(cell: &AtomicU64) -> u64 {
    let value = cell.load(Ordering::Relaxed);
    cell.store(0, Ordering::Release);
    value
}

impl Thread {
    /// Hands out an object of at least `bytes` bytes.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let class = SizeClass::for_bytes(bytes, self.connection.page_size);
        let Some(class) = class.filter(|class| capacity(*class) > 0) else {
            self.refill(bytes, 1)?;
            let slot = self.slot()?;
            return Ok(GlobalAddr::from_raw(take(&slot.inbox[0])));
        };
        let index = usize::from(class.index());
        if self.magazines.counts[index] == 0 {
            self.fill_magazine(class)?;
        }
        let top = self.magazines.counts[index] - 1;
        let slot = self.slot()?;
        let addr = GlobalAddr::from_raw(take(&slot.magazines[index][usize::from(top)]));
        self.magazines.counts[index] = top;
        Ok(addr)
    }

    #[cold]
    fn fill_magazine(&mut self, class: SizeClass) -> Result<(), AllocError> {
        let wanted = u64::from(capacity(class)).div_ceil(2);
        let count = self.refill(class.bytes(), wanted)?.min(u64::from(capacity(class)));
        let slot = self.slot()?;
        let magazine = &slot.magazines[usize::from(class.index())];
        let mut filled = 0;
        for (inbox, cell) in slot.inbox.iter().zip(magazine).take(EXCHANGE) {
            if u64::from(filled) == count {
                break;
            }
            cell.store(inbox.load(Ordering::Relaxed), Ordering::Release);
            inbox.store(0, Ordering::Release);
            filled += 1;
        }
        self.magazines.counts[usize::from(class.index())] = filled;
        Ok(())
    }

    /// Gets 1 to `count` objects into the inbox.
    fn refill(&mut self, bytes: u64, count: u64) -> Result<u64, AllocError> {
        self.clear_inbox()?;
        let request = RackRequest::Refill { bytes, count };
        let mut answer = self.calls.ask(&self.connection, request, Route::Rack)?;
        if matches!(answer, RackAnswer::OutOfMemory { .. }) && self.flush_everything()? {
            answer = self.calls.ask(&self.connection, request, Route::Rack)?;
        }
        match answer {
            RackAnswer::Done(count) if count > 0 && count <= EXCHANGE as u64 => Ok(count),
            RackAnswer::Invalid => Err(AllocError::TooLarge(bytes)),
            RackAnswer::OutOfMemory { rack_frames, rack_free, racks, pool_frames, pool_free } => {
                Err(AllocError::OutOfMemory {
                    bytes,
                    rack_frames,
                    rack_free,
                    racks,
                    pool_frames,
                    pool_free,
                })
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }

    /// Gives back what an earlier request brought after this thread had given it up: it may have
    /// been for objects of another size.
    fn clear_inbox(&mut self) -> Result<(), DaemonError> {
        if !self.calls.settle_abandoned(&self.connection) {
            // The daemon may still write to the inbox.
            return Err(DaemonError::Unavailable);
        }
        for index in 0..EXCHANGE {
            let late = self.slot()?.inbox[index].load(Ordering::Relaxed);
            if late == 0 {
                continue;
            }
            if usize::from(self.magazines.outbox) == EXCHANGE {
                self.flush_outbox_if_possible()?;
            }
            let slot = self.slot()?;
            let room = slot.outbox.get(usize::from(self.magazines.outbox));
            room.ok_or(DaemonError::Unavailable)?.store(late, Ordering::Release);
            slot.inbox[index].store(0, Ordering::Release);
            self.magazines.outbox += 1;
        }
        Ok(())
    }

    /// Takes an object back.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        let target = self.target(addr, 1)?;
        // Where a page lies may have changed since it was remembered, what it is used for too if
        // it was freed and allocated anew: an object is only taken back on fresh knowledge.
        let mut translation = self.translate_for_free(&target)?;
        if let Place::Local { frame, word } = translation.place
            && self.window.look(frame) != Some(word)
        {
            self.translations.remove(target.page);
            translation = self.translate_for_free(&target)?;
        }
        let mut class = self.class_at(&target, &translation);
        if class.is_err() && matches!(translation.place, Place::Remote { .. }) {
            self.translations.remove(target.page);
            translation = self.translate_for_free(&target)?;
            class = self.class_at(&target, &translation);
        }
        let Some(class) = class? else { return self.give_back(addr, true) };
        let Place::Local { .. } = translation.place else {
            return self.give_back(addr, class.bytes() >= PROMPT_BYTES);
        };
        self.check_allocated(addr, &translation, class)?;
        if capacity(class) == 0 {
            return self.give_back(addr, true);
        }
        self.keep(addr, class)
    }

    fn translate_for_free(&mut self, target: &Target) -> Result<Translation, FreeError> {
        self.translate(target).map_err(|error| match error {
            AccessError::NotAllocated(addr) => FreeError::NotAllocated(addr),
            other => other.into(),
        })
    }

    /// The class of the object that starts at the target; `None` for a run of pages.
    fn class_at(
        &self,
        target: &Target,
        translation: &Translation,
    ) -> Result<Option<SizeClass>, FreeError> {
        let (addr, size) = (target.addr, self.connection.page_size);
        match translation.page_use(size) {
            PageUse::Slab(class) if target.offset & (class.bytes() - 1) == 0 => Ok(Some(class)),
            PageUse::Run { index: 0, .. } if target.offset == 0 => Ok(None),
            PageUse::Slab(class) => {
                Err(FreeError::NotAnObject { addr, object_bytes: class.bytes() })
            }
            PageUse::Run { pages, .. } => {
                let object_bytes = u64::from(pages) * size.bytes();
                Err(FreeError::NotAnObject { addr, object_bytes })
            }
            PageUse::Unused => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// The daemon's bitmap tells objects that were never handed out or have been taken back.
    fn check_allocated(
        &self,
        addr: GlobalAddr,
        translation: &Translation,
        class: SizeClass,
    ) -> Result<(), FreeError> {
        let Place::Local { frame, .. } = translation.place else { return Ok(()) };
        let object = addr.offset(self.connection.page_size) >> class.bits();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "objects of a page number at most 2^26"
        )]
        let (offset, bit) = self.connection.layout.bit(frame, class, object as u32);
        match self.connection.metadata.load(offset) {
            Ok(word) if word & bit != 0 => Ok(()),
            _ => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// Puts a local object into its magazine.
    fn keep(&mut self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        let index = usize::from(class.index());
        let count = self.magazines.counts[index];
        let access = |error: DaemonError| FreeError::Access(error.into());
        let slot = self.slot().map_err(access)?;
        let held = &slot.magazines[index][..usize::from(count)];
        if held.iter().any(|cell| cell.load(Ordering::Relaxed) == addr.raw()) {
            return Err(FreeError::NotAllocated(addr));
        }
        if count < capacity(class) {
            slot.magazines[index][usize::from(count)].store(addr.raw(), Ordering::Release);
            self.magazines.counts[index] = count + 1;
            return Ok(());
        }
        self.drain_magazine(class, capacity(class) / 2).map_err(access)?;
        self.keep(addr, class)
    }

    /// Gives the objects of a magazine from the top down to `keep` back to the daemon.
    #[cold]
    fn drain_magazine(&mut self, class: SizeClass, keep: u8) -> Result<(), DaemonError> {
        let index = usize::from(class.index());
        while self.magazines.counts[index] > keep {
            if usize::from(self.magazines.outbox) == EXCHANGE {
                self.flush_outbox_if_possible()?;
            }
            let top = self.magazines.counts[index] - 1;
            let slot = self.slot()?;
            let cell = &slot.magazines[index][usize::from(top)];
            let room = slot.outbox.get(usize::from(self.magazines.outbox));
            room.ok_or(DaemonError::Unavailable)?
                .store(cell.load(Ordering::Relaxed), Ordering::Release);
            cell.store(0, Ordering::Release);
            self.magazines.outbox += 1;
            self.magazines.counts[index] = top;
        }
        self.flush_outbox_if_possible()
    }

    /// Puts an object into the outbox, which is emptied at once or when enough are there.
    fn give_back(&mut self, addr: GlobalAddr, at_once: bool) -> Result<(), FreeError> {
        let access = |error: DaemonError| FreeError::Access(error.into());
        // Whoever wants to know at once travels alone: the answer is about this object.
        if self.magazines.outbox >= if at_once { 1 } else { REMOTE_BATCH } {
            match self.flush_outbox() {
                Err(error) if is_away(&error) && self.magazines.outbox < FULL => {}
                other => drop(other?),
            }
        }
        let slot = self.slot().map_err(access)?;
        let waiting = &slot.outbox[..usize::from(self.magazines.outbox)];
        if waiting.iter().any(|cell| cell.load(Ordering::Relaxed) == addr.raw()) {
            return Err(FreeError::NotAllocated(addr));
        }
        slot.outbox[usize::from(self.magazines.outbox)].store(addr.raw(), Ordering::Release);
        self.magazines.outbox += 1;
        if !at_once {
            return Ok(());
        }
        match self.flush_outbox() {
            Ok(0) => Ok(()),
            Ok(_) => Err(FreeError::NotAllocated(addr)),
            // It stands in the outbox, and goes home with a later one, or when this client goes.
            Err(error) if is_away(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Empties the outbox but for objects whose rack is away.
    fn flush_outbox_if_possible(&mut self) -> Result<(), DaemonError> {
        match self.flush_outbox() {
            Err(AccessError::Daemon(error)) if error != DaemonError::MetadataUnreachable => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Empties the outbox; returns how many of its objects were not allocated. When a rack is away
    /// its objects stay.
    fn flush_outbox(&mut self) -> Result<u64, AccessError> {
        if self.magazines.outbox == 0 {
            return Ok(0);
        }
        match self.calls.ask(&self.connection, RackRequest::Release, Route::Rack)? {
            RackAnswer::Done(refused) => {
                self.magazines.outbox = 0;
                if refused > 0 {
                    tracing::warn!("{refused} objects were freed twice");
                }
                Ok(refused)
            }
            refusal => {
                self.magazines.outbox = close_ranks(&self.slot()?.outbox);
                Err(access_error(refusal, GlobalAddr::NULL))
            }
        }
    }

    /// Gives everything back that the thread holds; whether there was anything.
    fn flush_everything(&mut self) -> Result<bool, DaemonError> {
        let any = self.magazines.outbox > 0 || self.magazines.counts.iter().any(|count| *count > 0);
        self.flush_outbox_if_possible()?;
        for index in (0_u8..).take(MAGAZINE_CLASSES) {
            if let Some(class) = SizeClass::from_index(index, self.connection.page_size) {
                self.drain_magazine(class, 0)?;
            }
        }
        Ok(any)
    }

    /// Gives everything back as far as the daemon can be reached; the rest is taken back when the
    /// client goes.
    pub(crate) fn give_back_everything(&mut self) {
        if self.connection.check_link().is_ok() && !self.calls.has_abandoned() {
            // What stays behind is found by the daemon, or by the next owner of the slot.
            let _ = self.flush_everything();
        }
    }
}
