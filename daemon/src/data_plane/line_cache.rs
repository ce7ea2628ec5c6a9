//! What holders of locks have written to lines of other racks and could not write back: the daemon
//! sends it with the unlock, and the home writes it. See docs/design/line-cache.md.

use std::time::Instant;

use rackpool_model::{ClaimId, GlobalAddr, LockClaim};
use rackpool_rrpc::RequestId;
use rackpool_wire::lock::{LockEnd, WrittenBytes, WrittenRun};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::command::count;
use super::leases::token;
use super::swap::Work;
use crate::data_plane::error::Result;

/// What became of bytes that a holder had not written back.
enum WriteBack {
    Done,
    /// The page can't be written now.
    Later,
    /// They can't be written.
    Refused,
}

impl DataPlane {
    /// Returns what the claim's line cache holds under this lock's number and its thread has not
    /// written back. No access of the thread is under way.
    pub(super) fn unwritten(&self, id: ClaimId, number: u64) -> WrittenBytes {
        let client = self.clients.all.get(id.client);
        let cache = client.and_then(|c| c.file.line_cache(id.thread, id.index).ok());
        let Some(cache) = cache.filter(|cache| cache.is_of(number)) else {
            return WrittenBytes::default();
        };
        let lines = cache.written_lines();
        let Ok(bytes) = cache.bytes_of(&lines) else { return WrittenBytes::default() };
        if !bytes.is_empty() {
            count(&self.metrics.locks.written_back);
        }
        WrittenBytes { lines, bytes }
    }

    /// Another rack gives up a lock of a page of this rack. What its holder has not written back is
    /// written before. If the page can't be written now, the request waits, and the lock is held.
    /// `until` is the end of that wait; `None` for a new request.
    pub(super) fn serve_unlock(
        &mut self,
        ask: RequestId,
        request: PeerRequest,
        until: Option<Instant>,
    ) -> Result<()> {
        let PeerRequest::Unlock { number, end, ref written } = request else { return Ok(()) };
        if until.is_none() {
            self.reply(ask, &PeerReply::Heard)?;
        }
        // If the lock has ended, another holder may have it.
        let lock = self.machine.remote_writer(token(ask.endpoint), number);
        let lock = lock.filter(|_| !written.lines.is_empty());
        let outcome = match lock {
            Some(lock) => self.write_under_lock(lock, written)?,
            None => WriteBack::Done,
        };
        match (outcome, lock) {
            (WriteBack::Later, Some(lock)) => {
                let until = until.unwrap_or_else(|| self.now() + 2 * self.lease);
                self.wait_for_swap(lock.page(), Work::Serve(ask, request, until));
                Ok(())
            }
            (WriteBack::Refused, _) => self.unlocked_elsewhere(ask, number, LockEnd::Abandoned),
            _ => self.unlocked_elsewhere(ask, number, end),
        }
    }

    /// Writes bytes of locked lines. They come from another rack and are not trusted.
    fn write_under_lock(&mut self, lock: LockClaim, written: &WrittenBytes) -> Result<WriteBack> {
        let size = self.rack.geometry.page_size;
        let is_within =
            |run: &WrittenRun| lock.covers(lock.offset() + run.offset, run.bytes.len() as u64);
        let Some(runs) = written.runs().filter(|runs| runs.iter().all(is_within)) else {
            tracing::error!("another rack sent bytes that are not those of its lock: {lock:?}");
            return Ok(WriteBack::Refused);
        };
        for run in runs {
            let bytes = written.bytes.get(run.bytes).unwrap_or_default();
            let addr = GlobalAddr::new(lock.page(), lock.offset() + run.offset, size);
            let refusal = match addr {
                Ok(addr) => self.serve_write(addr, bytes)?,
                Err(_) => PeerReply::NotAllocated,
            };
            match refusal {
                PeerReply::Written { .. } => {}
                PeerReply::Busy => return Ok(WriteBack::Later),
                // The page was freed or is lost.
                refusal => {
                    tracing::warn!("what a holder of {lock:?} wrote is lost: {refusal:?}");
                    return Ok(WriteBack::Refused);
                }
            }
        }
        Ok(WriteBack::Done)
    }
}
