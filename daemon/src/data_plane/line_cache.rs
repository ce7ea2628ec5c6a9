//! What holders of locks have written to lines of other racks and could not write back: the daemon
//! sends it with the unlock, and the home writes it. See docs/design/line-cache.md.

use std::time::Instant;

use rackpool_model::{ClaimId, GlobalAddr, LockClaim};
use rackpool_rrpc::RequestId;
use rackpool_wire::lock::WrittenBytes;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::command::count;
use super::leases::token;
use super::swap::Work;
use crate::data_plane::error::Result;

impl DataPlane {
    /// Returns what the claim's line cache holds under this lock's number and its thread has not
    /// written back. No access of the thread is under way.
    pub(super) fn unwritten(&self, id: ClaimId, number: u64) -> WrittenBytes {
        let client = self.clients.all.get(id.client);
        let Some(cache) = client.and_then(|c| c.file.line_cache(id.thread, id.index).ok()) else {
            return WrittenBytes::default();
        };
        let lines: Vec<(u8, u64)> = cache.masks.written_under(number).collect();
        let Ok(bytes) = cache.collect(&lines) else { return WrittenBytes::default() };
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
        if !written.lines.is_empty()
            && let Some(lock) = self.machine.remote_writer(token(ask.endpoint), number)
            && !self.write_under_lock(lock, written)?
        {
            let until = until.unwrap_or_else(|| self.now() + 2 * self.lease);
            self.wait_for_swap(lock.page(), Work::Serve(ask, request, until));
            return Ok(());
        }
        self.unlocked_elsewhere(ask, number, end)
    }

    /// Writes bytes of locked lines. They come from another rack and are not trusted. Returns false
    /// if they can't be written now.
    fn write_under_lock(&mut self, lock: LockClaim, written: &WrittenBytes) -> Result<bool> {
        let size = self.rack.geometry.page_size;
        for run in written.runs().unwrap_or_default() {
            let offset = lock.offset() + run.offset;
            let bytes = written.bytes.get(run.bytes).unwrap_or_default();
            let addr = GlobalAddr::new(lock.page(), offset, size).ok();
            let Some(addr) = addr.filter(|_| lock.covers(offset, bytes.len() as u64)) else {
                tracing::error!("another rack wrote bytes beyond its lock of {}", lock.page());
                return Ok(true);
            };
            match self.serve_write(addr, bytes)? {
                PeerReply::Written { .. } => {}
                PeerReply::Busy => return Ok(false),
                // The page was freed or is lost.
                refusal => {
                    tracing::warn!("{} B of {addr} can't be written: {refusal:?}", bytes.len());
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }
}
