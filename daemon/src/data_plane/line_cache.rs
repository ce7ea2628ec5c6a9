//! What holders of locks have written to lines of other racks and could not write back: the daemon
//! sends it with the unlock, and the home writes it. See docs/design/line-cache.md.

use rackpool_model::{ClaimId, GlobalAddr, LockClaim, PageId};
use rackpool_rrpc::RequestId;
use rackpool_wire::lock::{LockEnd, WrittenBytes};
use rackpool_wire::peer::PeerReply;

use super::DataPlane;
use super::command::count;
use super::leases::token;
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
    /// written before. Returns the page if it can't be written now: the lock is held on.
    pub(super) fn serve_unlock(
        &mut self,
        ask: RequestId,
        number: u64,
        end: LockEnd,
        written: &WrittenBytes,
    ) -> Result<Option<PageId>> {
        // If the lock has ended, another holder may have it.
        if !written.lines.is_empty()
            && let Some(lock) = self.machine.remote_writer(token(ask.endpoint), number)
            && !self.write_under_lock(lock, written)?
        {
            return Ok(Some(lock.page()));
        }
        self.unlocked_elsewhere(ask, number, end)?;
        Ok(None)
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
