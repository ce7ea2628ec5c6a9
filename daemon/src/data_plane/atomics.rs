//! Compare-and-swap and fetch-and-add, executed by the home of the page; and the answers to clients
//! about operations that a home has executed for them.

use rackpool_model::{Access, GlobalAddr, PageId, RackId};
use rackpool_proto::rack::{Executor, LeaseAnswer, PageAccess, RackEvent};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::DataPlane;
use super::clients::Caller;
use super::home_requests::refusal;
use super::peers::Purpose;
use super::swap::Work;
use crate::data_plane::error::Result;

/// An operation that the home of a page executes for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HomeOperation {
    pub(super) caller: Caller,
    pub(super) page: PageId,
    /// The batch of a write to a page that moves; `None` for an atomic operation.
    pub(super) batch: Option<u64>,
}

/// An atomic operation on 8 bytes of this rack.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atomic {
    CompareAndSwap { expected: u64, new: u64 },
    FetchAndAdd { delta: u64 },
}

impl DataPlane {
    /// Sends an atomic operation to the home of its page. No lease is needed.
    pub(super) fn forward_atomic(&mut self, caller: Caller, message: RackRequest) -> Result<()> {
        let (addr, atomic, request) = match message {
            RackRequest::CompareAndSwap { addr, expected, new } => {
                let atomic = Atomic::CompareAndSwap { expected, new };
                (addr, atomic, PeerRequest::CompareAndSwap { addr, expected, new })
            }
            RackRequest::FetchAndAdd { addr, delta } => {
                (addr, Atomic::FetchAndAdd { delta }, PeerRequest::FetchAndAdd { addr, delta })
            }
            _ => {
                self.clients.finish(caller, RackAnswer::Invalid);
                return Ok(());
            }
        };
        // Refused here: the other rack would answer a malformed request and log an error.
        if !addr.raw().is_multiple_of(8) {
            self.clients.finish(caller, RackAnswer::Invalid);
            return Ok(());
        }
        let page = addr.page(self.rack.geometry.page_size);
        let Some(page) = page else {
            self.clients.finish(caller, RackAnswer::Moved);
            return Ok(());
        };
        let offset = addr.offset(self.rack.geometry.page_size);
        if self.has_lost_lock(caller, page, offset, size_of::<u64>() as u64) {
            self.clients.finish(caller, RackAnswer::LockLost);
            return Ok(());
        }
        let now = self.cached_now();
        match self.machine.executor(self.at(now), &self.slab, page, true) {
            // A lock of the page is being lost.
            Executor::Home(home) if !self.may_operate_at(caller, page, home) => {
                self.clients.finish(caller, RackAnswer::Moved);
            }
            Executor::ThisRack(_) => {
                let answer = match self.atomic(addr, atomic) {
                    PeerReply::Value(before) => RackAnswer::Done(before),
                    PeerReply::Invalid(_) => RackAnswer::Invalid,
                    _ => RackAnswer::Moved,
                };
                self.clients.finish(caller, answer);
            }
            Executor::Home(home) => {
                self.remote_access(page, Access::Write, 1);
                let purpose = Purpose::Operation(HomeOperation { caller, page, batch: None });
                self.ask(home, request, purpose, self.now() + self.lease)?;
            }
            Executor::Later => self.wait_for_swap(page, Work::Atomic(caller, message)),
            // The client's next translation finds the page, or its answer says why not.
            Executor::Unknown => self.clients.finish(caller, RackAnswer::Moved),
        }
        Ok(())
    }

    /// The home of a page has executed a client's operation, or refused it and never will execute
    /// it. After a refusal the client translates again, and that waits until the page can be used.
    pub(super) fn operation_answered(
        &mut self,
        operation: HomeOperation,
        home: RackId,
        reply: &PeerReply,
    ) {
        let HomeOperation { page, batch, .. } = operation;
        let is_forwarded = batch.is_some();
        let answer = match reply {
            PeerReply::Value(before) => RackAnswer::Done(*before),
            PeerReply::Written { moving: true } => RackAnswer::Done(0),
            PeerReply::Written { moving: false } => {
                self.machine.handle(RackEvent::WrittenByHome { page, home });
                RackAnswer::DoneAt(home)
            }
            PeerReply::NotAllocated => RackAnswer::NotAllocated,
            PeerReply::Lost => RackAnswer::PageLost,
            PeerReply::NotHere => {
                self.machine.note_refusal(page, home, LeaseAnswer::NotHere, is_forwarded);
                RackAnswer::Moved
            }
            PeerReply::Busy => {
                self.machine.note_refusal(page, home, LeaseAnswer::Busy, is_forwarded);
                RackAnswer::Moved
            }
            other => {
                tracing::error!("{home} answered an operation in {page} with {other:?}");
                RackAnswer::Invalid
            }
        };
        self.finish_operation(operation, answer);
    }

    /// Ends an operation that another rack was to execute, with this answer.
    pub(super) fn finish_operation(&mut self, operation: HomeOperation, answer: RackAnswer) {
        let HomeOperation { caller, batch, .. } = operation;
        let Some(batch) = batch else { return self.clients.finish(caller, answer) };
        self.transfers.forwarding.remove(&caller.client_thread());
        match answer {
            RackAnswer::Done(_) | RackAnswer::DoneAt(_) => self.clients.finish(caller, answer),
            refusal => self.refuse_transfer(caller, batch, refusal),
        }
    }

    /// Executes an atomic operation on this rack's CPU, so that it is atomic with respect to the
    /// rack's own clients. Only this thread freezes or revokes pages, so the page's state does not
    /// change meanwhile. The operation is executed if the page is live, or if it moves and this
    /// rack writes it for others; else it is refused.
    pub(super) fn atomic(&mut self, addr: GlobalAddr, atomic: Atomic) -> PeerReply {
        let page_size = self.rack.geometry.page_size;
        let Some(page) = addr.page(page_size) else { return PeerReply::NotAllocated };
        // Adding 0 is a read.
        let access = match atomic {
            Atomic::FetchAndAdd { delta: 0 } => Access::Read,
            _ => Access::Write,
        };
        let permitted = self.machine.access(&self.slab, page, access);
        let (PageAccess::Usable(found) | PageAccess::Forwarded(found)) = permitted else {
            return refusal(permitted);
        };
        let offset = addr.offset(page_size);
        let frames = std::sync::Arc::clone(&self.rack.frames);
        let at = u64::from(found.frame.0) * page_size.bytes() + offset;
        let Ok(cell) = frames.view::<AtomicU64>(at) else {
            return PeerReply::Invalid(format!("{addr} is not aligned to 8 B"));
        };
        if matches!(permitted, PageAccess::Forwarded(_)) {
            self.note_written(found, offset, size_of::<u64>());
        }
        PeerReply::Value(match atomic {
            Atomic::CompareAndSwap { expected, new } => {
                match cell.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(before) | Err(before) => before,
                }
            }
            Atomic::FetchAndAdd { delta: 0 } => cell.load(Ordering::SeqCst),
            Atomic::FetchAndAdd { delta } => cell.fetch_add(delta, Ordering::SeqCst),
        })
    }
}
