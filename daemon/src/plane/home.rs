//! Requests of other racks: this rack is the home.

use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{GlobalAddr, PageState};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::requests::LEAVING_PATIENCE;

/// Another rack's allocation that waits for a page to become free.
#[derive(Debug)]
pub(super) struct StarvedPeer {
    endpoint: EndpointId,
    call: u64,
    request: PeerRequest,
    deadline: Instant,
}

/// An operation on 8 bytes of this rack.
#[derive(Clone, Copy, Debug)]
enum Atomic {
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd { delta: u64 },
}

impl DataPlane {
    pub(super) fn serve_peer(
        &mut self,
        endpoint: EndpointId,
        call: u64,
        request: PeerRequest,
    ) -> anyhow::Result<()> {
        if let PeerRequest::Allocate { rack, .. } | PeerRequest::Free { rack, .. } = &request
            && !self.peers.belongs_to(endpoint, *rack)
        {
            let text = "an exchange in the name of another rack".into();
            return self.reply(endpoint, call, PeerReply::Invalid(text));
        }
        let reply = match request {
            PeerRequest::Lookup { page } => match self.slab.lookup(page) {
                Some((frame, word, usage)) if word.is_readable() => {
                    self.leaving.lease(page, endpoint);
                    PeerReply::Location { frame, epoch: word.epoch(), usage }
                }
                Some(_) => PeerReply::NotAllocated,
                None => PeerReply::NotHere,
            },
            PeerRequest::Revoke { page, .. } => return self.revoke(page, endpoint, call),
            PeerRequest::CompareAndSwap { addr, expected, new } => {
                self.atomic(addr, Atomic::CompareAndSwap { expected, new })
            }
            PeerRequest::FetchAndAdd { addr, delta } => {
                self.atomic(addr, Atomic::FetchAndAdd { delta })
            }
            PeerRequest::Allocate { .. } => {
                let deadline = Instant::now() + LEAVING_PATIENCE;
                return self.allocate_for(StarvedPeer { endpoint, call, request, deadline });
            }
            PeerRequest::Free { rack, memory, sequence, addrs } => {
                self.serve_free(rack, memory, sequence, &addrs)?
            }
        };
        self.reply(endpoint, call, reply)
    }

    /// Allocates for another rack, at once or when pages have left.
    fn allocate_for(&mut self, starved: StarvedPeer) -> anyhow::Result<()> {
        let PeerRequest::Allocate { rack, memory, sequence, bytes, count } = starved.request else {
            return Ok(());
        };
        let at_last = Instant::now() > starved.deadline;
        match self.serve_allocate(rack, memory, sequence, bytes, count, at_last)? {
            Some(reply) => self.reply(starved.endpoint, starved.call, reply),
            None => {
                self.starved_peers.push(starved);
                Ok(())
            }
        }
    }

    /// Tries again for other racks that wait for a leaving page.
    pub(super) fn feed_starved_peers(&mut self) -> anyhow::Result<()> {
        for starved in std::mem::take(&mut self.starved_peers) {
            self.allocate_for(starved)?;
        }
        Ok(())
    }

    /// On this rack's CPU, so that it is atomic to what the rack's own clients do. The page can't
    /// be taken away meanwhile: only this thread does that.
    fn atomic(&self, addr: GlobalAddr, atomic: Atomic) -> PeerReply {
        let page_size = self.rack.geometry.page_size;
        let Some(page) = addr.page(page_size) else { return PeerReply::NotAllocated };
        let Some((frame, word, _)) = self.slab.lookup(page) else { return PeerReply::NotHere };
        if word.state() != Some(PageState::Live) {
            return PeerReply::NotAllocated;
        }
        let at = u64::from(frame.0) * page_size.bytes() + addr.offset(page_size);
        let Ok(cell) = self.rack.frames.view::<AtomicU64>(at) else {
            return PeerReply::Invalid(format!("{addr} is not aligned to 8 B"));
        };
        PeerReply::Value(match atomic {
            Atomic::CompareAndSwap { expected, new } => {
                match cell.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(before) | Err(before) => before,
                }
            }
            Atomic::FetchAndAdd { delta } => cell.fetch_add(delta, Ordering::SeqCst),
        })
    }
}
