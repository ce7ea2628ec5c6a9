//! Batches of atomic operations: those on other racks are in flight at the same time.

use std::collections::VecDeque;

use rackpool_ring::client_file::RingKind;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::window::AtomicOperation;
use rackpool_wire::rack::RackAnswer;

use crate::atomics::request;
use crate::calls::{Outcome, PostedCall};
use crate::deadline::Deadline;
use crate::thread::{Thread, access_error};
use crate::translation::Place;
use crate::{AccessError, GlobalAddr};

/// One atomic operation of a batch; `before` is the previous value of its 8 bytes once it is done.
#[derive(Debug)]
pub(crate) struct BatchedAtomic {
    pub(crate) addr: GlobalAddr,
    pub(crate) atomic: AtomicOperation,
    pub(crate) before: u64,
}

impl Thread {
    /// Executes all operations in any order. After an error each may or may not have been executed.
    pub(crate) fn atomic_batch(&mut self, batch: &mut [BatchedAtomic]) -> Result<(), AccessError> {
        let deadline = Deadline::after(self.connection.request_timeout());
        let mut in_flight: VecDeque<(usize, PostedCall)> = VecDeque::new();
        let mut failed = Ok(());
        let mut flushed = 0;
        for index in 0..batch.len() {
            // One call cell must stay free for the requests that the following operations need.
            if !self.calls.is_available(&self.connection) {
                failed =
                    self.flush_atomics(&mut in_flight, &mut flushed, &deadline).and_then(|()| {
                        self.collect_atomic(batch, &mut in_flight, &mut flushed, &deadline)
                    });
            }
            if failed.is_ok() {
                failed = self.start_atomic(batch, index, &mut in_flight, &deadline);
            }
            if failed.is_err() {
                break;
            }
        }
        failed = failed.and(self.flush_atomics(&mut in_flight, &mut flushed, &deadline));
        // Posted operations are awaited after an error too.
        while !in_flight.is_empty() {
            let collected = self.collect_atomic(batch, &mut in_flight, &mut flushed, &deadline);
            failed = failed.and(collected);
        }
        failed
    }

    /// Executes one operation if that needs no round trip; otherwise stages it.
    fn start_atomic(
        &mut self,
        batch: &mut [BatchedAtomic],
        index: usize,
        in_flight: &mut VecDeque<(usize, PostedCall)>,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let BatchedAtomic { addr, atomic, .. } = batch[index];
        if let Some(other) = self.failover_for(addr, 8, AccessIntent::Write) {
            batch[index].before = self.siblings[other].atomic(addr, atomic)?;
            return Ok(());
        }
        self.check(addr, 8)?;
        if self.goes_out(addr)? {
            let (connection, request) = (&self.connection, request(addr, atomic));
            let posted = self.calls.stage(connection, request, RingKind::Remote, None, deadline)?;
            in_flight.push_back((index, posted));
        } else {
            batch[index].before = self.atomic(addr, atomic)?;
        }
        Ok(())
    }

    fn goes_out(&mut self, addr: GlobalAddr) -> Result<bool, AccessError> {
        if !addr.raw().is_multiple_of(8) {
            return Err(AccessError::Misaligned(addr));
        }
        let target = self.target(addr, 8)?;
        let place = self.translate(&target, AccessIntent::Write)?.place;
        Ok(!matches!(place, Place::Local { .. } | Place::Sibling { .. }))
    }

    /// Posts the staged operations, which are all but the first `flushed`.
    fn flush_atomics(
        &mut self,
        in_flight: &mut VecDeque<(usize, PostedCall)>,
        flushed: &mut usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        if in_flight.len() == *flushed {
            return Ok(());
        }
        if let Err(error) = self.calls.flush(&self.connection, RingKind::Remote, deadline) {
            for (_, posted) in in_flight.drain(*flushed..) {
                self.calls.unstage(&self.connection, posted);
            }
            return Err(error.into());
        }
        *flushed = in_flight.len();
        Ok(())
    }

    /// Waits for the oldest operation in flight.
    fn collect_atomic(
        &mut self,
        batch: &mut [BatchedAtomic],
        in_flight: &mut VecDeque<(usize, PostedCall)>,
        flushed: &mut usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let Some((index, posted)) = in_flight.pop_front() else { return Ok(()) };
        *flushed = flushed.saturating_sub(1);
        let BatchedAtomic { addr, atomic, .. } = batch[index];
        let before = match self.calls.wait(&self.connection, posted, deadline)?.outcome {
            Outcome::Answered(RackAnswer::Done(before)) => before,
            Outcome::Answered(RackAnswer::Moved) => {
                if let Some(page) = addr.page(self.connection.page_size) {
                    self.forget(page);
                }
                self.atomic(addr, atomic)?
            }
            Outcome::Answered(refusal) => return Err(access_error(refusal, addr)),
            Outcome::Lost => return Err(AccessError::Indeterminate(self.connection.rack)),
        };
        batch[index].before = before;
        Ok(())
    }
}
