//! One-sided transfers for clients: straight between a page of another rack and the data area of
//! the client's thread. All transfers of a poll round to one rack are posted as one list.

use std::collections::BTreeMap;

use rackpool_fabric::{
    EndpointId, ErrorClass, FabricError, Operation, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_model::{ClientId, GlobalAddr, PageId};
use rackpool_ring::client_file::DATA_BYTES;
use rackpool_ring::request::Request;
use rackpool_wire::rack::RackAnswer;

use super::clients::Caller;
use super::{DataPlane, count};

/// Posts that wait for room in a queue before remote rings are left alone.
const BACKLOG: usize = 64;

/// A transfer on the way.
#[derive(Clone, Copy, Debug)]
struct OnTheWay {
    caller: Caller,
    page: PageId,
    batch: u64,
}

/// What a client wants to be moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) addr: GlobalAddr,
    pub(super) len: u64,
    /// Where in its thread's data area.
    pub(super) data: u64,
    pub(super) batch: u64,
    pub(super) is_read: bool,
}

/// The transfers of all clients.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    on_the_way: BTreeMap<u64, OnTheWay>,
    next: u64,
    /// To be posted, by endpoint.
    to_post: BTreeMap<EndpointId, Vec<WorkRequest>>,
    /// Leases that were called back while transfers used them.
    waiting_revokes: Vec<(PageId, EndpointId, u64)>,
    /// Room for the requests of a poll round, kept between rounds.
    pub(super) round: Vec<(ClientId, Request)>,
}

impl Transfers {
    /// Whether clients have to wait before more can be posted.
    pub(super) fn is_full(&self) -> bool {
        self.to_post.values().map(Vec::len).sum::<usize>() >= BACKLOG
    }

    fn uses(&self, page: PageId) -> bool {
        self.on_the_way.values().any(|transfer| transfer.page == page)
    }
}

impl DataPlane {
    pub(super) fn start_transfer(&mut self, caller: Caller, wanted: &Wanted) {
        count(&self.figures.remote_operations);
        let batch = wanted.batch;
        match self.transfer_request(caller, wanted) {
            Ok((endpoint, page, operation)) => {
                self.transfers.next += 1;
                let id = self.transfers.next;
                self.transfers.on_the_way.insert(id, OnTheWay { caller, page, batch });
                let request = WorkRequest { id, operation };
                self.transfers.to_post.entry(endpoint).or_default().push(request);
            }
            Err(answer) => self.refuse_transfer(caller, batch, answer),
        }
    }

    /// Nothing of a batch is done after a part of it was not done.
    fn refuse_transfer(&mut self, caller: Caller, batch: u64, answer: RackAnswer) {
        if let Some(client) = self.clients.0.get_mut(&caller.client) {
            client.refused.insert(caller.thread, batch);
        }
        self.clients.finish(caller, answer);
    }

    fn transfer_request(
        &self,
        caller: Caller,
        wanted: &Wanted,
    ) -> Result<(EndpointId, PageId, Operation), RackAnswer> {
        let Wanted { addr, len, data, batch, is_read } = *wanted;
        let client = self.client(caller).ok_or(RackAnswer::Invalid)?;
        if client.refused.get(&caller.thread) == Some(&batch) {
            return Err(RackAnswer::Moved);
        }
        let page_size = self.rack.geometry.page_size;
        let page = addr.page(page_size).ok_or(RackAnswer::Invalid)?;
        let offset = addr.offset(page_size);
        let lease = self.leases.get(&page).ok_or(RackAnswer::Moved)?;
        let endpoint = self.peers.connected_endpoint(lease.home).ok_or(RackAnswer::Moved)?;
        let in_page = len > 0 && len <= page_size.bytes() - offset;
        let in_area = data <= DATA_BYTES && len <= DATA_BYTES - data;
        let len = u32::try_from(len).ok().filter(|_| in_page && in_area);
        let len = len.ok_or(RackAnswer::Invalid)?;
        let area = client.file.data_offset(caller.thread).map_err(|_| RackAnswer::Invalid)?;
        let transfer = Transfer {
            local: client.region,
            local_offset: area + data,
            remote: RemoteRegion::FRAMES,
            remote_offset: u64::from(lease.frame.0) * page_size.bytes() + offset,
            len,
        };
        let operation =
            if is_read { Operation::Read(transfer) } else { Operation::Write(transfer) };
        Ok((endpoint, page, operation))
    }

    /// Posts what a poll round has gathered: one list for each rack.
    pub(super) fn post_transfers(&mut self) -> anyhow::Result<()> {
        if self.transfers.to_post.is_empty() {
            return Ok(());
        }
        let depth = self.fabric.queue_depth().max(1);
        for (endpoint, mut list) in std::mem::take(&mut self.transfers.to_post) {
            while !list.is_empty() {
                let some = list.len().min(depth);
                match self.fabric.post(endpoint, &list[..some]) {
                    Ok(()) => drop(list.drain(..some)),
                    Err(error) if error.class() == ErrorClass::Retry && some > 1 => {
                        // As many as fit: halve until they do.
                        if !self.post_fewer(endpoint, &mut list, some / 2) {
                            break;
                        }
                    }
                    Err(error) if error.class() == ErrorClass::Retry => break,
                    Err(error) => {
                        for request in list.drain(..) {
                            self.completed(endpoint, request.id, Err(error.clone()))?;
                        }
                    }
                }
            }
            if !list.is_empty() {
                self.transfers.to_post.insert(endpoint, list);
            }
        }
        Ok(())
    }

    fn post_fewer(
        &mut self,
        endpoint: EndpointId,
        list: &mut Vec<WorkRequest>,
        mut some: usize,
    ) -> bool {
        while some > 0 {
            if self.fabric.post(endpoint, &list[..some]).is_ok() {
                list.drain(..some);
                return true;
            }
            some /= 2;
        }
        false
    }

    /// A posted transfer has ended.
    pub(super) fn completed(
        &mut self,
        _endpoint: EndpointId,
        id: u64,
        result: Result<(), FabricError>,
    ) -> anyhow::Result<()> {
        let Some(OnTheWay { caller, page, batch }) = self.transfers.on_the_way.remove(&id) else {
            return Ok(());
        };
        match result {
            Ok(()) => self.clients.finish(caller, RackAnswer::Done(0)),
            // Reads and writes may be done again, at wherever the page is found then.
            Err(error) if error.class() != ErrorClass::Fatal => {
                self.refuse_transfer(caller, batch, RackAnswer::Moved);
            }
            Err(error) => {
                tracing::error!("a transfer of {page} failed: {error}");
                self.refuse_transfer(caller, batch, RackAnswer::Invalid);
            }
        }
        if !self.transfers.waiting_revokes.is_empty() {
            self.answer_revokes()?;
        }
        Ok(())
    }

    /// The page's home calls the lease back: no new transfers, and an answer when those on the
    /// way have ended.
    pub(super) fn revoke(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        call: u64,
    ) -> anyhow::Result<()> {
        self.leases.remove(&page);
        self.transfers.waiting_revokes.push((page, endpoint, call));
        self.answer_revokes()
    }

    fn answer_revokes(&mut self) -> anyhow::Result<()> {
        let waiting = std::mem::take(&mut self.transfers.waiting_revokes);
        for (page, endpoint, call) in waiting {
            if self.transfers.uses(page) {
                self.transfers.waiting_revokes.push((page, endpoint, call));
            } else {
                self.reply(endpoint, call, rackpool_wire::peer::PeerReply::Revoked)?;
            }
        }
        Ok(())
    }

    /// A client has gone: what it wanted and was not posted yet is not wanted any more.
    pub(super) fn drop_unposted_of(&mut self, client: ClientId) {
        let Transfers { on_the_way, to_post, .. } = &mut self.transfers;
        for list in to_post.values_mut() {
            list.retain(|request| {
                let of_client =
                    on_the_way.get(&request.id).is_some_and(|t| t.caller.client == client);
                if of_client {
                    on_the_way.remove(&request.id);
                }
                !of_client
            });
        }
        to_post.retain(|_, list| !list.is_empty());
    }

    /// An endpoint has ended: what was not posted to it yet is answered.
    pub(super) fn drop_unposted(&mut self, endpoint: EndpointId) -> anyhow::Result<()> {
        for request in self.transfers.to_post.remove(&endpoint).unwrap_or_default() {
            self.completed(endpoint, request.id, Err(FabricError::PeerGone))?;
        }
        self.transfers.waiting_revokes.retain(|(_, waiting, _)| *waiting != endpoint);
        Ok(())
    }
}
