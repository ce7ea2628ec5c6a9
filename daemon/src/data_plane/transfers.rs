//! One-sided transfers for clients, directly between a page of another rack and the client's data
//! ring, or from such a page into fixed memory of this rack. All transfers of a poll round to one
//! rack are posted as one list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::{
    EndpointId, ErrorClass, FabricError, Operation, RegionId, RemoteRegion, Transfer,
};
use rackpool_model::{Access, ClientId, GlobalAddr, PageId, RackId};
use rackpool_ring::client_file::DATA_BYTES;
use rackpool_ring::request::Request;
use rackpool_wire::rack::RackAnswer;

use super::DataPlane;
use super::clients::{Batch, Caller, ClientThread};
use super::command::count;
use super::leases::endpoint_of;
use super::stalled_transfers::Progress;
use super::transfer_number::TransferUser;
use crate::data_plane::error::Result;

/// One in this many transfers is timed.
const TIMED: u64 = 16;

/// A transfer in flight.
#[derive(Clone, Copy, Debug)]
struct OnTheWay {
    caller: Caller,
    page: PageId,
    access: Access,
    batch: u64,
    home: RackId,
    endpoint: EndpointId,
    /// The fixed object that it writes, or to whose extents.
    head: Option<GlobalAddr>,
    /// When it was requested, if it is timed.
    since: Option<Instant>,
    /// The rack, if it was cut off because this transfer did not end.
    given_up: Option<RackId>,
}

/// This rack's side of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Buffer {
    /// The offset in the client's data ring.
    DataRing(u64),
    /// An address in fixed memory of this rack, and the head to which it belongs.
    Fixed { head: GlobalAddr, addr: GlobalAddr },
}

/// A client's transfer request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) addr: GlobalAddr,
    pub(super) len: u64,
    pub(super) buffer: Buffer,
    pub(super) batch: u64,
    pub(super) is_read: bool,
}

impl Wanted {
    const fn access(&self) -> Access {
        if self.is_read { Access::Read } else { Access::Write }
    }
}

/// A checked transfer request: its place in the page and in this rack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    pub(super) page: PageId,
    /// Offset in the page.
    pub(super) offset: u64,
    pub(super) len: u32,
    /// The client's file or the frames.
    local: RegionId,
    /// Offset in that region.
    pub(super) local_offset: u64,
    /// The head whose memory it writes.
    head: Option<GlobalAddr>,
}

/// A transfer that a lease permits.
#[derive(Debug)]
struct LeasedTransfer {
    home: RackId,
    /// The endpoint that the lease is valid for.
    endpoint: EndpointId,
    operation: Operation,
}

/// The transfers of all clients.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    on_the_way: BTreeMap<u64, OnTheWay>,
    /// Threads whose last write is forwarded to another rack, because its page moves.
    pub(super) forwarding: BTreeSet<ClientThread>,
    /// Buffer for the requests of a poll round, reused.
    pub(super) round: Vec<(ClientId, Request)>,
}

impl Transfers {
    /// Returns true if no transfer is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }

    /// Returns true if transfers of the client are in flight.
    pub(super) fn has_any_of(&self, client: ClientId) -> bool {
        self.on_the_way.values().any(|transfer| transfer.caller.client == client)
    }

    /// Returns true if transfers of the thread to or from the page are in flight.
    pub(super) fn has_any_in(&self, thread: ClientThread, page: PageId) -> bool {
        let mut all = self.on_the_way.values();
        all.any(|transfer| transfer.page == page && transfer.caller.client_thread() == thread)
    }

    /// Returns the transfers in flight, the oldest first.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = Progress> {
        let all = self.on_the_way.iter();
        all.map(|(id, transfer)| Progress { id: *id, ended: 0, endpoint: transfer.endpoint })
    }

    /// Returns the fixed objects whose memory transfers in flight write.
    pub(super) fn heads(&self) -> impl Iterator<Item = GlobalAddr> {
        self.on_the_way.values().filter_map(|transfer| transfer.head)
    }

    /// Marks the endpoint's transfers: clients do not repeat them when they end with an error.
    pub(super) fn give_up(&mut self, endpoint: EndpointId, rack: RackId) {
        for transfer in self.on_the_way.values_mut() {
            if transfer.endpoint == endpoint {
                transfer.given_up = Some(rack);
            }
        }
    }
}

impl DataPlane {
    pub(super) fn start_transfer(&mut self, caller: Caller, wanted: &Wanted) -> Result<()> {
        let batch = wanted.batch;
        let Some(client) = self.clients.all.get_mut(caller.client) else { return Ok(()) };
        let Batch { over, refused, .. } = *client.batch(caller.thread, batch);
        // A thread's operations are executed in order: a transfer posted now could overtake the
        // forwarded write.
        let waits = self.transfers.forwarding.contains(&caller.client_thread());
        if refused || waits || wanted.is_read && self.has_copy_of(wanted.addr) {
            self.refuse_transfer(caller, batch, RackAnswer::Moved);
            return Ok(());
        }
        let within = match self.within(caller, wanted) {
            Ok(within) => within,
            Err(answer) => {
                self.refuse_transfer(caller, batch, answer);
                return Ok(());
            }
        };
        if self.has_lost_lock(caller, within.page, within.offset, u64::from(within.len)) {
            self.refuse_transfer(caller, batch, RackAnswer::LockLost);
            return Ok(());
        }
        self.post_transfer(caller, within, wanted.access(), batch, over)
    }

    /// Posts a transfer if the page's lease permits it and is valid over the endpoint that the
    /// batch has used so far. A write without a lease may be forwarded to another daemon or
    /// executed here.
    fn post_transfer(
        &mut self,
        caller: Caller,
        within: Within,
        access: Access,
        batch: u64,
        over: Option<EndpointId>,
    ) -> Result<()> {
        let page = within.page;
        match self.transfer_request(within, access) {
            // The transfer could overtake those on the other endpoint.
            Ok(LeasedTransfer { endpoint, .. }) if over.is_some_and(|over| over != endpoint) => {
                self.operation_ended(page, endpoint, access);
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            // A lock of the page is being lost.
            Ok(LeasedTransfer { endpoint, .. })
                if !self.may_operate_over(caller, page, endpoint) =>
            {
                self.operation_ended(page, endpoint, access);
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            Ok(LeasedTransfer { home, endpoint, operation }) => {
                count(&self.metrics.remote_operations);
                let id = self.transfer_numbers.next(TransferUser::Client);
                match self.rrpc.transfer(endpoint, id, operation) {
                    Ok(()) => {
                        let since =
                            self.transfer_numbers.drawn().is_multiple_of(TIMED).then(Instant::now);
                        let (head, given_up) = (within.head, None);
                        self.transfers.on_the_way.insert(
                            id,
                            OnTheWay {
                                caller,
                                page,
                                access,
                                batch,
                                home,
                                endpoint,
                                head,
                                since,
                                given_up,
                            },
                        );
                        if let Some(batch) = self.last_batch(caller, batch) {
                            batch.over = Some(endpoint);
                        }
                    }
                    // The endpoint is ending.
                    Err(_) => {
                        self.operation_ended(page, endpoint, access);
                        self.refuse_transfer(caller, batch, RackAnswer::Moved);
                    }
                }
            }
            Err(RackAnswer::Moved) if access == Access::Write && over.is_none() => {
                self.forward_transfer(caller, within, batch)?;
            }
            Err(answer) => self.refuse_transfer(caller, batch, answer),
        }
        Ok(())
    }

    /// Returns the batch of this number, if the thread has begun no other since.
    fn last_batch(&mut self, caller: Caller, number: u64) -> Option<&mut Batch> {
        let client = self.clients.all.get_mut(caller.client)?;
        client.batches.get_mut(&caller.thread).filter(|last| last.number == number)
    }

    /// Returns true if the client can read a copy itself. Its next translation names the copy.
    fn has_copy_of(&mut self, addr: GlobalAddr) -> bool {
        let now = self.cached_now();
        let page = addr.page(self.rack.geometry.page_size);
        let Some(page) = page.filter(|_| !self.machine.copies().is_empty()) else { return false };
        let known = self.machine.known_access(self.at(now), page, Access::Read);
        matches!(known, Some(RackAnswer::Copied { .. }))
    }

    /// Refuses a transfer and with it the rest of its batch.
    pub(super) fn refuse_transfer(&mut self, caller: Caller, batch: u64, answer: RackAnswer) {
        if let Some(batch) = self.last_batch(caller, batch) {
            batch.refused = true;
        }
        self.clients.finish(caller, answer);
    }

    /// Checks a transfer request, and returns its place in the page and in this rack.
    fn within(&self, caller: Caller, wanted: &Wanted) -> Result<Within, RackAnswer> {
        let Wanted { addr, len, buffer, .. } = *wanted;
        let client = self.client(caller).ok_or(RackAnswer::Invalid)?;
        let page_size = self.rack.geometry.page_size;
        let page = addr.page(page_size).ok_or(RackAnswer::Invalid)?;
        let offset = addr.offset(page_size);
        let in_page = len > 0 && len <= page_size.bytes() - offset;
        let len = u32::try_from(len).ok().filter(|_| in_page).ok_or(RackAnswer::Invalid)?;
        let (local, local_offset, head) = match buffer {
            Buffer::DataRing(data) => {
                let in_ring = data <= DATA_BYTES && u64::from(len) <= DATA_BYTES - data;
                let at = in_ring.then(|| client.file.data_offset() + data);
                (client.region, at, None)
            }
            Buffer::Fixed { head, addr } => {
                (self.frames, self.slab.fixed_place(head, addr, len), Some(head))
            }
        };
        let local_offset = local_offset.ok_or(RackAnswer::Invalid)?;
        Ok(Within { page, offset, len, local, local_offset, head })
    }

    /// Begins an operation under the page's lease, and returns the transfer to post.
    fn transfer_request(
        &mut self,
        within: Within,
        access: Access,
    ) -> Result<LeasedTransfer, RackAnswer> {
        let Within { page, offset, len, local, local_offset, .. } = within;
        let page_size = self.rack.geometry.page_size;
        let now = self.cached_now();
        // Last, because an operation that was begun must be ended.
        let lease = self.machine.begin(self.at(now), page, access).ok_or(RackAnswer::Moved)?;
        let transfer = Transfer {
            local,
            local_offset,
            remote: RemoteRegion::FRAMES,
            remote_offset: u64::from(lease.frame.0) * page_size.bytes() + offset,
            len,
        };
        let operation = match access {
            Access::Read => Operation::Read(transfer),
            Access::Write => Operation::Write(transfer),
        };
        let endpoint = endpoint_of(lease.endpoint);
        Ok(LeasedTransfer { home: lease.home, endpoint, operation })
    }

    /// A transfer has ended.
    pub(super) fn transferred(&mut self, id: u64, result: Result<(), FabricError>) -> Result<()> {
        let Some(transfer) = self.transfers.on_the_way.remove(&id) else { return Ok(()) };
        let OnTheWay { caller, page, access, batch, home, endpoint, since, given_up, .. } =
            transfer;
        if let (Some(since), Ok(())) = (since, &result) {
            self.metrics.remote_times.record(since.elapsed());
        }
        let is_done = result.is_ok();
        match (result, given_up) {
            (Ok(()), _) => self.clients.finish(caller, RackAnswer::DoneAt(home)),
            (Err(_), Some(rack)) => {
                self.refuse_transfer(caller, batch, RackAnswer::RackUnavailable(rack));
            }
            // The client repeats the transfer at the page's current home.
            (Err(error), None) if error.class() != ErrorClass::Fatal => {
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            (Err(error), None) => {
                tracing::error!("a transfer of {page} failed: {error}");
                self.refuse_transfer(caller, batch, RackAnswer::Invalid);
            }
        }
        self.operation_ended(page, endpoint, access);
        // Last, because no caller waits for this. A repeated transfer is counted when it has
        // succeeded.
        if is_done {
            self.remote_access(page, access, 1);
        }
        Ok(())
    }

    /// A client has gone: withdraws its transfers that are not posted yet.
    pub(super) fn drop_unposted_of(&mut self, client: ClientId) -> Result<()> {
        let on_the_way = &self.transfers.on_the_way;
        let of_client = |id| on_the_way.get(&id).is_some_and(|t| t.caller.client == client);
        for id in self.rrpc.withdraw_transfers(of_client) {
            let withdrawn = self.transfers.on_the_way.remove(&id);
            if let Some(OnTheWay { page, endpoint, access, .. }) = withdrawn {
                self.operation_ended(page, endpoint, access);
            }
        }
        Ok(())
    }
}
