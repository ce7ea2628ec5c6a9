//! Compare-and-swap and fetch-and-add: on the CPU of the page's home rack, whoever asks.

use std::time::Instant;

use rackpool_ring::client_file::Route;
use rackpool_shm::access::Intent;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::thread::{Thread, access_error};
use crate::translation::Place;
use crate::{AccessError, DaemonError, GlobalAddr};

/// What is done to the 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd { delta: u64 },
}

impl Atomic {
    fn apply(self, cell: &AtomicU64) -> u64 {
        match self {
            Self::CompareAndSwap { expected, new } => {
                match cell.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(before) | Err(before) => before,
                }
            }
            Self::FetchAndAdd { delta } => cell.fetch_add(delta, Ordering::SeqCst),
        }
    }

    const fn request(self, addr: GlobalAddr) -> RackRequest {
        match self {
            Self::CompareAndSwap { expected, new } => {
                RackRequest::CompareAndSwap { addr, expected, new }
            }
            Self::FetchAndAdd { delta } => RackRequest::FetchAndAdd { addr, delta },
        }
    }
}

impl Thread {
    /// Carries the operation out once and returns the value before it.
    pub(crate) fn atomic(&mut self, addr: GlobalAddr, atomic: Atomic) -> Result<u64, AccessError> {
        if !addr.raw().is_multiple_of(8) {
            return Err(AccessError::Misaligned(addr));
        }
        let target = self.target(addr, 8)?;
        let deadline = Instant::now() + self.connection.request_timeout();
        loop {
            let done = match self.translate(&target)?.place {
                Place::Local { frame, word } => match self.enter(frame, word, Intent::Write)? {
                    Some(_guard) => {
                        let cell = self.window.cell(frame, target.offset);
                        Some(atomic.apply(cell.map_err(|_| DaemonError::Protocol)?))
                    }
                    None => None,
                },
                Place::Remote { .. } => self.atomic_remote(addr, atomic, deadline)?,
            };
            if let Some(before) = done {
                return Ok(before);
            }
            self.translations.remove(target.page);
            if Instant::now() > deadline {
                return Err(DaemonError::Unavailable.into());
            }
        }
    }

    /// `Ok(None)`: the page is not there any more, nothing was done.
    fn atomic_remote(
        &mut self,
        addr: GlobalAddr,
        atomic: Atomic,
        deadline: Instant,
    ) -> Result<Option<u64>, AccessError> {
        let cell = self.calls.reserve(&self.connection)?;
        let request = atomic.request(addr);
        let posted = self.calls.post(&self.connection, cell, request, Route::Remote, deadline);
        let posted = match posted {
            Ok(posted) => posted,
            Err(error) => {
                self.calls.unreserve(cell);
                return Err(error.into());
            }
        };
        self.connection.ring_doorbell();
        match self.calls.wait(&self.connection, posted, deadline)? {
            Outcome::Answered(RackAnswer::Done(before)) => Ok(Some(before)),
            Outcome::Answered(RackAnswer::Moved) => Ok(None),
            Outcome::Answered(refusal) => Err(access_error(refusal, addr)),
            Outcome::Lost => Err(AccessError::Indeterminate(self.connection.rack)),
        }
    }
}
