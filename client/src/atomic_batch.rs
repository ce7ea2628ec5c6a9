//! Batches of atomic operations: those on other racks are in flight at the same time.

use std::collections::VecDeque;

use rackpool_ring::client_file::RingKind;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::window::AtomicOperation;
use rackpool_wire::rack::RackAnswer;

use crate::atomics::request;
use crate::calls::{Outcome, Posted};
use crate::deadline::Deadline;
use crate::thread::{Thread, access_error};
use crate::translation::Place;
use crate::{AccessError, GlobalAddr};

/// One atomic operation of a batch; `before` is the previous value of its 8 bytes once it is done.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) addr: GlobalAddr,
    pub(crate) atomic: AtomicOperation,
    pub(crate) before: u64,
}

impl Thread {
    /// Executes all operations in any order. After an error each may or may not have been executed.
    pub(crate) fn atomic_batch(&mut self, batch: &mut [Wanted]) -> Result<(), AccessError> {
        let deadline = Deadline::after(self.connection.request_timeout());
        let mut on_the_way: VecDeque<(usize, Posted)> = VecDeque::new();
        let mut failed = Ok(());
        let mut flushed = 0;
        for index in 0..batch.len() {
            // One call cell must stay free for the requests that the following operations need.
            if !self.calls.is_available(&self.connection) {
                failed =
                    self.flush_atomics(&mut on_the_way, &mut flushed, &deadline).and_then(|()| {
                        self.collect_atomic(batch, &mut on_the_way, &mut flushed, &deadline)
                    });
            }
            if failed.is_ok() {
                failed = self.start_atomic(batch, index, &mut on_the_way, &deadline);
            }
            if failed.is_err() {
                break;
            }
        }
        failed = failed.and(self.flush_atomics(&mut on_the_way, &mut flushed, &deadline));
        // Posted operations are awaited after an error too.
        while !on_the_way.is_empty() {
            let collected = self.collect_atomic(batch, &mut on_the_way, &mut flushed, &deadline);
            failed = failed.and(collected);
        }
        failed
    }

    /// Executes one operation if that needs no round trip; otherwise stages it.
    fn start_atomic(
        &mut self,
        batch: &mut [Wanted],
        index: usize,
        on_the_way: &mut VecDeque<(usize, Posted)>,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let Wanted { addr, atomic, .. } = batch[index];
        self.check(addr, 8)?;
        if self.goes_out(addr)? {
            let (connection, request) = (&self.connection, request(addr, atomic));
            let posted = self.calls.stage(connection, request, RingKind::Remote, None, deadline)?;
            on_the_way.push_back((index, posted));
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
        Ok(!matches!(self.translate(&target, AccessIntent::Write)?.place, Place::Local { .. }))
    }

    /// Posts the staged operations, which are all but the first `flushed`.
    fn flush_atomics(
        &mut self,
        on_the_way: &mut VecDeque<(usize, Posted)>,
        flushed: &mut usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        if on_the_way.len() == *flushed {
            return Ok(());
        }
        if let Err(error) = self.calls.flush(&self.connection, RingKind::Remote, deadline) {
            for (_, posted) in on_the_way.drain(*flushed..) {
                self.calls.unstage(&self.connection, posted);
            }
            return Err(error.into());
        }
        *flushed = on_the_way.len();
        Ok(())
    }

    /// Waits for the oldest operation in flight.
    fn collect_atomic(
        &mut self,
        batch: &mut [Wanted],
        on_the_way: &mut VecDeque<(usize, Posted)>,
        flushed: &mut usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), AccessError> {
        let Some((index, posted)) = on_the_way.pop_front() else { return Ok(()) };
        *flushed = flushed.saturating_sub(1);
        let Wanted { addr, atomic, .. } = batch[index];
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
