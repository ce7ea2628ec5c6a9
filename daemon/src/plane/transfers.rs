//! One-sided transfers for clients: straight between a page of another rack and the client's data
//! ring. All transfers of a poll round to one rack are posted as one list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::{EndpointId, ErrorClass, FabricError, Operation, RemoteRegion, Transfer};
use rackpool_model::{Access, ClientId, GlobalAddr, PageId, RackId};
use rackpool_ring::client_file::DATA_BYTES;
use rackpool_ring::request::Request;
use rackpool_wire::rack::RackAnswer;

use super::DataPlane;
use super::clients::{Batch, Caller};
use super::command::count;
use super::leases::endpoint_of;
use super::stalls::Progress;

/// The time of one transfer of so many is taken.
const TIMED: u64 = 16;

/// A transfer on the way.
#[derive(Clone, Copy, Debug)]
struct OnTheWay {
    caller: Caller,
    page: PageId,
    access: Access,
    batch: u64,
    home: RackId,
    endpoint: EndpointId,
    /// When it was asked for, of those whose time is taken.
    since: Option<Instant>,
    /// The rack, if it has been cut off because this did not end.
    given_up: Option<RackId>,
}

/// What a client wants to be moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) addr: GlobalAddr,
    pub(super) len: u64,
    /// Where in the client's data ring.
    pub(super) data: u64,
    pub(super) batch: u64,
    pub(super) is_read: bool,
}

impl Wanted {
    const fn access(&self) -> Access {
        if self.is_read { Access::Read } else { Access::Write }
    }
}

/// What a client wants, in a page and in the client's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    pub(super) page: PageId,
    /// Offset in the page.
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Offset in the client's file.
    pub(super) local_offset: u64,
}

/// The transfers of all clients.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    on_the_way: BTreeMap<u64, OnTheWay>,
    /// Threads whose last write another rack carries out in a page that moves.
    pub(super) forwarding: BTreeSet<(ClientId, u16)>,
    next: u64,
    /// Room for the requests of a poll round, kept between rounds.
    pub(super) round: Vec<(ClientId, Request)>,
}

impl Transfers {
    /// Whether none is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }

    /// Whether transfers of the client are on their way.
    pub(super) fn has_any_of(&self, client: ClientId) -> bool {
        self.on_the_way.values().any(|transfer| transfer.caller.client == client)
    }

    /// All that have been started and have not ended, the oldest first.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = Progress> {
        let all = self.on_the_way.iter();
        all.map(|(id, transfer)| Progress { id: *id, ended: 0, endpoint: transfer.endpoint })
    }

    /// Those on an endpoint are not done again when they end with an error.
    pub(super) fn give_up(&mut self, endpoint: EndpointId, rack: RackId) {
        for transfer in self.on_the_way.values_mut() {
            if transfer.endpoint == endpoint {
                transfer.given_up = Some(rack);
            }
        }
    }
}

impl DataPlane {
    pub(super) fn start_transfer(&mut self, caller: Caller, wanted: &Wanted) -> anyhow::Result<()> {
        let batch = wanted.batch;
        let Some(client) = self.clients.all.get_mut(caller.client) else { return Ok(()) };
        let Batch { over, refused, .. } = *client.batch(caller.thread, batch);
        // One after the other: what is posted now could be done before that.
        let waits = self.transfers.forwarding.contains(&(caller.client, caller.thread));
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
        self.post_transfer(caller, within, wanted.access(), (batch, over))
    }

    /// Posts what is wanted if there is a lease for it, which is good over the endpoint that this
    /// batch has used before. A write without one may be done by another daemon, or here.
    pub(super) fn post_transfer(
        &mut self,
        caller: Caller,
        within: Within,
        access: Access,
        (batch, over): (u64, Option<EndpointId>),
    ) -> anyhow::Result<()> {
        let page = within.page;
        match self.transfer_request(caller, within, access) {
            // It could overtake what goes the other way.
            Ok((_, endpoint, _)) if over.is_some_and(|over| over != endpoint) => {
                self.operation_ended(page, endpoint, access)?;
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            Ok((home, endpoint, operation)) => {
                count(&self.metrics.remote_operations);
                self.transfers.next += 1;
                let id = self.transfers.next;
                match self.rrpc.transfer(endpoint, id, operation) {
                    Ok(()) => {
                        let since = id.is_multiple_of(TIMED).then(Instant::now);
                        let given_up = None;
                        self.transfers.on_the_way.insert(
                            id,
                            OnTheWay {
                                caller,
                                page,
                                access,
                                batch,
                                home,
                                endpoint,
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
                        self.operation_ended(page, endpoint, access)?;
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

    /// The batch of this number, if no other of its thread has begun since.
    fn last_batch(&mut self, caller: Caller, number: u64) -> Option<&mut Batch> {
        let client = self.clients.all.get_mut(caller.client)?;
        client.batches.get_mut(&caller.thread).filter(|last| last.number == number)
    }

    /// Whether the client can read a copy itself: it is told so when it asks where the page is.
    fn has_copy_of(&mut self, addr: GlobalAddr) -> bool {
        let now = self.moment();
        let page = addr.page(self.rack.geometry.page_size);
        page.is_some_and(|page| self.copied(now, page).is_some())
    }

    /// Nothing of a batch is done after a part of it was not done.
    pub(super) fn refuse_transfer(&mut self, caller: Caller, batch: u64, answer: RackAnswer) {
        if let Some(batch) = self.last_batch(caller, batch) {
            batch.refused = true;
        }
        self.clients.finish(caller, answer);
    }

    /// Where the bytes that are wanted lie, once it is checked that they can be there.
    fn within(&self, caller: Caller, wanted: &Wanted) -> Result<Within, RackAnswer> {
        let Wanted { addr, len, data, .. } = *wanted;
        let client = self.client(caller).ok_or(RackAnswer::Invalid)?;
        let page_size = self.rack.geometry.page_size;
        let page = addr.page(page_size).ok_or(RackAnswer::Invalid)?;
        let offset = addr.offset(page_size);
        let in_page = len > 0 && len <= page_size.bytes() - offset;
        let in_ring = data <= DATA_BYTES && len <= DATA_BYTES - data;
        let len = u32::try_from(len).ok().filter(|_| in_page && in_ring);
        let len = len.ok_or(RackAnswer::Invalid)?;
        Ok(Within { page, offset, len, local_offset: client.file.data_offset() + data })
    }

    /// The operation that moves what is wanted, begun under a lease.
    fn transfer_request(
        &mut self,
        caller: Caller,
        within: Within,
        access: Access,
    ) -> Result<(RackId, EndpointId, Operation), RackAnswer> {
        let Within { page, offset, len, local_offset } = within;
        let local = self.client(caller).ok_or(RackAnswer::Invalid)?.region;
        let page_size = self.rack.geometry.page_size;
        let now = self.moment();
        // Last: what is begun must be ended.
        let lease = self.leases.begin(now, page, access).ok_or(RackAnswer::Moved)?;
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
        Ok((lease.home, endpoint_of(lease.endpoint), operation))
    }

    /// A transfer has ended.
    pub(super) fn transferred(
        &mut self,
        id: u64,
        result: Result<(), FabricError>,
    ) -> anyhow::Result<()> {
        let Some(transfer) = self.transfers.on_the_way.remove(&id) else { return Ok(()) };
        let OnTheWay { caller, page, access, batch, home, endpoint, since, given_up } = transfer;
        if let (Some(since), Ok(())) = (since, &result) {
            self.metrics.remote_times.record(since.elapsed());
        }
        let is_done = result.is_ok();
        match (result, given_up) {
            (Ok(()), _) => self.clients.finish(caller, RackAnswer::DoneAt(home)),
            (Err(_), Some(rack)) => {
                self.refuse_transfer(caller, batch, RackAnswer::RackUnavailable(rack));
            }
            // Reads and writes may be done again, at wherever the page is found then.
            (Err(error), None) if error.class() != ErrorClass::Fatal => {
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            (Err(error), None) => {
                tracing::error!("a transfer of {page} failed: {error}");
                self.refuse_transfer(caller, batch, RackAnswer::Invalid);
            }
        }
        self.operation_ended(page, endpoint, access)?;
        // Last: nobody waits for it. What is done again counts then.
        if is_done {
            self.remote_access(page, access, 1)?;
            if access == Access::Read {
                self.ask_for_copy(page)?;
            }
        }
        Ok(())
    }

    /// A client has gone: what it wanted and was not posted yet is not wanted any more.
    pub(super) fn drop_unposted_of(&mut self, client: ClientId) -> anyhow::Result<()> {
        let on_the_way = &self.transfers.on_the_way;
        let of_client = |id| on_the_way.get(&id).is_some_and(|t| t.caller.client == client);
        for id in self.rrpc.withdraw_transfers(of_client) {
            let withdrawn = self.transfers.on_the_way.remove(&id);
            if let Some(OnTheWay { page, endpoint, access, .. }) = withdrawn {
                self.operation_ended(page, endpoint, access)?;
            }
        }
        Ok(())
    }
}
