//! Reads and writes of any length. Splits them at page boundaries; accesses pages in this rack with
//! loads and stores.

use rackpool_model::FrameId;
use rackpool_shm::access::AccessIntent;

use crate::deadline::Retries;
use crate::remote::{DaemonTransfer, RemoteTransfer};
use crate::thread::{Entered, Target, Thread};
use crate::translation::{Place, Translation};
use crate::{AccessError, DaemonError, GlobalAddr, RackId};

/// The buffer of a transfer and its direction.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Bytes<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Read(into) => into.len(),
            Self::Write(from) => from.len(),
        }
    }

    pub(crate) const fn intent(&self) -> AccessIntent {
        match self {
            Self::Read(_) => AccessIntent::Read,
            Self::Write(_) => AccessIntent::Write,
        }
    }

    /// The `len` bytes that begin at `start`.
    pub(crate) fn part(&mut self, start: usize, len: usize) -> Bytes<'_> {
        match self {
            Self::Read(into) => Bytes::Read(&mut into[start..start + len]),
            Self::Write(from) => Bytes::Write(&from[start..start + len]),
        }
    }
}

impl Thread {
    pub(crate) fn hit(&self, addr: GlobalAddr, bytes: &mut Bytes<'_>) -> bool {
        match bytes {
            Bytes::Read(into) => self.window.read(addr, into),
            Bytes::Write(from) => self.window.write(addr, from),
        }
    }

    /// A transfer that the program requested; checked in a checked client.
    pub(crate) fn transfer_checked(
        &mut self,
        addr: GlobalAddr,
        bytes: Bytes<'_>,
    ) -> Result<(), AccessError> {
        if bytes.len() > 0 {
            self.check(addr, bytes.len())?;
        }
        self.transfer(addr, bytes)
    }

    /// Executes a transfer of any length, to any page in any rack.
    pub(crate) fn transfer(
        &mut self,
        addr: GlobalAddr,
        mut bytes: Bytes<'_>,
    ) -> Result<(), AccessError> {
        if bytes.len() == 0 {
            return Err(AccessError::Empty);
        }
        let page_bytes = self.connection.page_size.bytes();
        let retries = Retries::within(self.connection.request_timeout());
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.len() - done;
            let here = addr.add(done as u64).map_err(|_| AccessError::InvalidAddress(addr))?;
            let target = self.target(here, rest)?;
            let in_page = (page_bytes - target.offset).min(rest as u64);
            #[expect(clippy::cast_possible_truncation, reason = "not above `rest`, a usize")]
            let len = in_page as usize;
            let translation = self.translate(&target, bytes.intent())?;
            match translation.place {
                Place::Local { .. } => {
                    if !self.transfer_here(&target, translation, bytes.part(done, len))? {
                        let part = bytes.part(done, len);
                        let some = self.transfer_moving(&target, translation, part)?;
                        done += some;
                        if some < len {
                            self.forget(target.page);
                            if !retries.pause() {
                                return Err(self.page_busy(here));
                            }
                        }
                        continue;
                    }
                }
                Place::Copied { frame, copy, .. } if bytes.intent() == AccessIntent::Read => {
                    if !self.read_copy(frame, copy, &target, bytes.part(done, len)) {
                        self.forget(target.page);
                        if !retries.pause() {
                            return Err(self.page_busy(here));
                        }
                        continue;
                    }
                }
                Place::Sibling { home }
                    if self.transfer_at_sibling(home, here, bytes.part(done, len))? => {}
                Place::Remote { home } | Place::Copied { home, .. } | Place::Sibling { home } => {
                    let mut one =
                        [RemoteTransfer { addr: here, home, bytes: bytes.part(done, len) }];
                    self.transfer_remote(&mut one)?;
                }
            }
            done += len;
        }
        Ok(())
    }

    /// Executes a transfer in a page of this rack. Returns false, with nothing done, if the page
    /// can't be entered.
    pub(crate) fn transfer_here(
        &mut self,
        target: &Target,
        known: Translation,
        bytes: Bytes<'_>,
    ) -> Result<bool, AccessError> {
        let Place::Local { frame, word } = known.place else { return Ok(false) };
        let Some(Entered { guard, word }) = self.enter(frame, word, bytes.intent())? else {
            return Ok(false);
        };
        let at = u64::from(frame.0) * self.connection.page_size.bytes() + target.offset;
        let copied = match bytes {
            Bytes::Read(into) => self.connection.frames.read(at, into),
            Bytes::Write(from) => self.connection.frames.write(at, from),
        };
        copied.map_err(|_| DaemonError::Protocol)?;
        drop(guard);
        // The window may have given the page's entry to another page, or the page was thawed.
        let place = Place::Local { frame, word };
        self.remember(target.page, Translation { place, ..known });
        Ok(true)
    }

    /// Executes a transfer in a page that was known to be in this rack and cannot be entered: it is
    /// moving or has moved. Returns the number of bytes transferred. If that is less than all, the
    /// caller must look the page up again.
    fn transfer_moving(
        &mut self,
        target: &Target,
        known: Translation,
        bytes: Bytes<'_>,
    ) -> Result<usize, AccessError> {
        let Place::Local { frame, word } = known.place else { return Ok(0) };
        let (len, intent) = (bytes.len(), bytes.intent());
        if let Bytes::Write(from) = &bytes
            && let Some(dirty_logged) = self.write_dirty_logged(frame, word, target.offset, from)?
        {
            // Later writes then know that the page is dirty-logged.
            if dirty_logged != word {
                let place = Place::Local { frame, word: dirty_logged };
                self.remember(target.page, Translation { place, ..known });
            }
            return Ok(len);
        }
        // The daemon writes the page or forwards the write to its home. For a page that has just
        // moved it also knows where to read it.
        if intent == AccessIntent::Write && !self.moves_here(frame, word) {
            return Ok(0);
        }
        let DaemonTransfer { done: some, home } = self.have_done(target.addr, bytes)?;
        if some == len && home != self.connection.rack {
            let place = self.place_at(home, Place::Remote { home });
            if place == (Place::Remote { home }) && self.connection.siblings.has(home) {
                self.forget(target.page);
            } else {
                self.remember(target.page, Translation { place, ..known });
            }
        }
        Ok(some)
    }

    /// Reads a cached copy. Returns false if the copy is no longer published; the caller then asks
    /// again.
    fn read_copy(&self, frame: FrameId, copy: u64, target: &Target, bytes: Bytes<'_>) -> bool {
        match bytes {
            Bytes::Read(into) => self.window.read_copy(frame, copy, target.offset, into),
            Bytes::Write(_) => false,
        }
    }

    /// Executes several transfers, with the effect of executing them in order. Consecutive
    /// transfers to the same other rack are in flight at the same time.
    pub(crate) fn transfer_batch<'a>(
        &mut self,
        transfers: impl Iterator<Item = (GlobalAddr, Bytes<'a>)>,
    ) -> Result<(), AccessError> {
        let mut waiting: Vec<RemoteTransfer<'a>> = Vec::new();
        for (addr, mut bytes) in transfers {
            if let Some(other) = self.failover_for(addr, bytes.len(), bytes.intent()) {
                self.transfer_remote(&mut waiting)?;
                waiting.clear();
                self.siblings[other].transfer_checked(addr, bytes)?;
                continue;
            }
            let checked = self.check(addr, bytes.len());
            if checked.is_ok() && waiting.is_empty() && self.hit(addr, &mut bytes) {
                continue;
            }
            let home = match checked.and_then(|()| self.whole_in_other_rack(addr, &bytes)) {
                Ok(home) => home,
                Err(error) => {
                    // The transfers before the failing one are complete.
                    self.transfer_remote(&mut waiting)?;
                    return Err(error);
                }
            };
            match home {
                Some(home) => {
                    if waiting.last().is_some_and(|last| last.home != home) {
                        self.transfer_remote(&mut waiting)?;
                        waiting.clear();
                    }
                    waiting.push(RemoteTransfer { addr, home, bytes });
                }
                None => {
                    self.transfer_remote(&mut waiting)?;
                    waiting.clear();
                    self.transfer(addr, bytes)?;
                }
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        self.transfer_remote(&mut waiting)
    }

    /// The home of the bytes if all of them lie in one page of another rack; `None` otherwise.
    fn whole_in_other_rack(
        &mut self,
        addr: GlobalAddr,
        bytes: &Bytes<'_>,
    ) -> Result<Option<RackId>, AccessError> {
        let len = bytes.len();
        if len == 0 {
            return Err(AccessError::Empty);
        }
        let target = self.target(addr, len)?;
        let whole = target.offset + target.len <= self.connection.page_size.bytes();
        match self.translate(&target, bytes.intent())?.place {
            Place::Remote { home } if whole => Ok(Some(home)),
            Place::Copied { home, .. } if whole && bytes.intent() == AccessIntent::Write => {
                Ok(Some(home))
            }
            _ => Ok(None),
        }
    }
}
