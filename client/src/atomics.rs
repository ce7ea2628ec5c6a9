//! Compare-and-swap and fetch-and-add. A processor of the page's home rack executes them.

use rackpool_model::{FrameId, PageWord, RackId};
use rackpool_ring::client_file::RingKind;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::window::AtomicOperation;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::deadline::{Deadline, Retries};
use crate::thread::{Target, Thread, access_error};
use crate::translation::{Place, Translation};
use crate::{AccessError, DaemonError, GlobalAddr};

/// The request that lets the daemon execute the operation.
pub(crate) const fn request(addr: GlobalAddr, atomic: AtomicOperation) -> RackRequest {
    match atomic {
        AtomicOperation::CompareAndSwap { expected, new } => {
            RackRequest::CompareAndSwap { addr, expected, new }
        }
        AtomicOperation::FetchAndAdd { delta } => RackRequest::FetchAndAdd { addr, delta },
    }
}

impl Thread {
    /// Executes the operation once and returns the previous value.
    #[inline]
    pub(crate) fn atomic(
        &mut self,
        addr: GlobalAddr,
        atomic: AtomicOperation,
    ) -> Result<u64, AccessError> {
        self.check(addr, 8)?;
        match self.window.change(addr, atomic) {
            Some(before) => Ok(before),
            None => self.atomic_anywhere(addr, atomic),
        }
    }

    /// The slow path of [`Self::atomic`]: the page may be unknown, frozen, or in another rack.
    #[cold]
    fn atomic_anywhere(
        &mut self,
        addr: GlobalAddr,
        atomic: AtomicOperation,
    ) -> Result<u64, AccessError> {
        if !addr.raw().is_multiple_of(8) {
            return Err(AccessError::Misaligned(addr));
        }
        let target = self.target(addr, 8)?;
        let deadline = Deadline::after(self.connection.request_timeout());
        let retries = Retries::within(self.connection.request_timeout());
        loop {
            let done = match self.translate(&target, AccessIntent::Write)?.place {
                Place::Local { frame, word } => {
                    match self.atomic_here(frame, word, &target, atomic)? {
                        // The page's daemon executes the operation or forwards it.
                        None if self.moves_here(frame, word) => {
                            self.atomic_remote(addr, atomic, &deadline)?
                        }
                        done => done,
                    }
                }
                Place::Sibling { home } => match self.atomic_at_sibling(home, &target, atomic)? {
                    None => self.atomic_remote(addr, atomic, &deadline)?,
                    done => done,
                },
                Place::Remote { .. } | Place::Copied { .. } => {
                    self.atomic_remote(addr, atomic, &deadline)?
                }
            };
            if let Some(before) = done {
                return Ok(before);
            }
            self.forget(target.page);
            if !retries.pause() {
                return Err(self.page_busy(addr));
            }
        }
    }

    /// Executes the operation in a sibling's part. Returns `Ok(None)`, with nothing done, if the
    /// page can't be written there.
    fn atomic_at_sibling(
        &mut self,
        home: RackId,
        target: &Target,
        atomic: AtomicOperation,
    ) -> Result<Option<u64>, AccessError> {
        let done = match self.translate_at(home, target, AccessIntent::Write)? {
            Some((other, Translation { place: Place::Local { frame, word }, .. })) => {
                other.atomic_here(frame, word, target, atomic)?
            }
            _ => None,
        };
        if done.is_none() {
            self.forget_at(home, target.page);
        }
        Ok(done)
    }

    /// Returns `Ok(None)`, with nothing done, if the page cannot be written in this frame.
    fn atomic_here(
        &self,
        frame: FrameId,
        word: PageWord,
        target: &Target,
        atomic: AtomicOperation,
    ) -> Result<Option<u64>, AccessError> {
        let Some(_entered) = self.enter(frame, word, AccessIntent::Write)? else { return Ok(None) };
        let cell = self.window.cell(frame, target.offset).map_err(|_| DaemonError::Protocol)?;
        Ok(Some(atomic.apply(cell)))
    }

    /// Returns `Ok(None)`, with nothing done, if the page has moved.
    fn atomic_remote(
        &mut self,
        addr: GlobalAddr,
        atomic: AtomicOperation,
        deadline: &Deadline<'_>,
    ) -> Result<Option<u64>, AccessError> {
        let request = request(addr, atomic);
        let posted = self.calls.post(&self.connection, request, RingKind::Remote, deadline)?;
        match self.calls.wait(&self.connection, posted, deadline)?.outcome {
            Outcome::Answered(RackAnswer::Done(before)) => Ok(Some(before)),
            Outcome::Answered(RackAnswer::Moved) => Ok(None),
            Outcome::Answered(refusal) => Err(access_error(refusal, addr)),
            Outcome::Lost => Err(AccessError::Indeterminate(self.connection.rack)),
        }
    }
}
