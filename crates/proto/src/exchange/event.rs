use alloc::vec::Vec;

use crate::Located;
use rackpool_model::{ClientId, GlobalAddr, PageId, RackId};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::{AskedRecord, PeerRecord, ServedRecord};

/// A thread of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientThread {
    /// The client.
    pub client: ClientId,
    /// The index of the thread's slot in the client's file.
    pub thread: u16,
}

/// A call: the call cell of a client's thread that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// The client.
    pub client: ClientId,
    /// Its thread.
    pub thread: u16,
    /// The thread's cell.
    pub cell: u8,
    /// The number of the call.
    pub call: u32,
}

impl Caller {
    /// Returns the thread that made the call.
    #[must_use]
    pub const fn client_thread(self) -> ClientThread {
        ClientThread { client: self.client, thread: self.thread }
    }
}

/// An event for the exchange of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeEvent {
    /// The daemon has started: what an earlier one has recorded for each rack. The files of all
    /// clients are known by now. Nothing is allocated or served before.
    Restarted(Vec<(RackId, PeerRecord)>),
    /// Allocate objects in another rack for a caller.
    Allocate {
        /// The caller.
        caller: Caller,
        /// The other rack.
        rack: RackId,
        /// The size of each object.
        bytes: u64,
        /// The most objects.
        count: u64,
    },
    /// Free objects that a client's cells hold: its outbox, or all cells after it has gone.
    Return {
        /// The thread whose cells hold them.
        owner: ClientThread,
        /// The caller that waits. `None` if the client has gone: the machine goes on until
        /// [`ExchangeAction::Returned`].
        caller: Option<Caller>,
        /// The objects, each once.
        addrs: Vec<GlobalAddr>,
        /// The number of other objects of the call that were not allocated.
        refused: u64,
    },
    /// A rack has answered the last [`ExchangeAction::Request`]. The answer is not trusted.
    Answered(RackId, PeerReply),
    /// The last [`ExchangeAction::Request`] to this rack will not be answered: its endpoint has
    /// ended.
    Unanswered(RackId),
    /// Another rack sent [`PeerRequest::Allocate`] or [`PeerRequest::Free`] in its own name. The
    /// rest of the request is not trusted. The shell draws the number.
    Requested(u64, PeerRequest),
    /// The metadata server's answer to [`ExchangeAction::Locate`].
    Located(PageId, Located),
}

/// Why objects stay in a client's outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Their page has moved or was shared for too long.
    PageBusy,
    /// This rack did not answer.
    RackUnavailable(RackId),
    /// The metadata server did not say where the page is.
    MetadataUnreachable,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// This many objects are in the inbox.
    Allocated(u64),
    /// The objects have left the outbox; this many of them were not allocated.
    Freed(u64),
    /// Some objects stay in the outbox.
    Kept(Obstacle),
    /// The inbox was not empty, or the other rack's answer makes no sense.
    Invalid,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeAction {
    /// Store the requester's record: the state last, and in `Idle` nothing but the state. While the
    /// fields are rewritten, each object that stays in the record is in one of its cells.
    StoreAsked(RackId, AskedRecord),
    /// Store the server's record: the state last, and in `Writing` nothing but the state.
    StoreServed(RackId, ServedRecord),
    /// Send the request, and report [`ExchangeEvent::Answered`] or [`ExchangeEvent::Unanswered`].
    Request(RackId, PeerRequest),
    /// Answer the request with this number.
    Answer(u64, PeerReply),
    /// Allocate the [candidate](super::ObjectMemory::candidate) for another rack.
    Allocate {
        /// The object.
        addr: GlobalAddr,
        /// The size that was asked for.
        bytes: u64,
    },
    /// Free an object.
    Free {
        /// The object.
        addr: GlobalAddr,
        /// The client that frees it; `None`: another rack.
        client: Option<ClientId>,
    },
    /// Put the objects into the caller's inbox.
    FillInbox(Caller, Vec<GlobalAddr>),
    /// Remove the objects from the cells of this thread.
    Strike(ClientThread, Vec<GlobalAddr>),
    /// Remove the objects from the cells of all clients.
    StrikeEverywhere(Vec<GlobalAddr>),
    /// Ask the metadata server for the page's home. The question may be lost.
    Locate(PageId),
    /// Answer a caller.
    Finish(Caller, CallResult),
    /// The rack has no room (it has this many free frames), or does not answer (`None`). Ask
    /// another one, or answer the caller.
    NotAllocated(Caller, RackId, Option<u32>),
    /// Report that a gone client's cells held an object that is not in use: the client has freed it
    /// twice, or has damaged its file.
    ReportUnused {
        /// The object.
        addr: GlobalAddr,
        /// The client.
        client: ClientId,
    },
    /// Nothing that this client's cells held is being returned any more.
    Returned(ClientId),
    /// A page that is perhaps shared has to be writable. [`RackMachine`](crate::rack::RackMachine)
    /// handles this itself.
    NeedPage(PageId),
}
