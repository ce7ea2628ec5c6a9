use rackpool_model::{Access, FrameId, PageId, PageWord, RackId};
use rackpool_wire::rack::RackAnswer;
use rackpool_wire::swap::{Between, FromServer, SwapId, ToServer};

use super::LeaseAnswer;
use crate::Located;
use crate::Time;
use crate::exchange::Caller;
use crate::exchange::{ExchangeAction, ExchangeEvent};
use crate::lease::{EndpointToken, Lease, Revocation};
use crate::lock::{LockAction, LockEvent};
use crate::publication::{RecoveryAction, RecoveryEvent};
use crate::share::CopyId;
use crate::swap::{RECORD_WORDS, SwapEvent};

/// An event in a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RackEvent {
    /// A page of another rack was found hot.
    Heated {
        /// The page.
        page: PageId,
        /// Its hotness here, in thousandths.
        milli: u64,
        /// Whether it is read-hot here.
        read_hot: bool,
    },
    /// The metadata server sent a message about a swap.
    ServerSent(FromServer),
    /// Another rack sent a message about a swap.
    RackSent(RackId, Between),
    /// A [`RackAction::CopyPage`] has ended. Each ends in bounded time.
    PageCopied {
        /// The swap.
        swap: SwapId,
        /// Whether all bytes were copied.
        whole: bool,
    },
    /// A client or rack waits to write a page, which may be moving.
    WriteWanted(PageId),
    /// Another rack sent the dirty lines of the page that it gives. The shell keeps their bytes
    /// until it has polled all actions that follow.
    DirtyLinesReceived {
        /// The sender.
        from: RackId,
        /// The swap.
        swap: SwapId,
        /// The page's frame there.
        theirs: FrameId,
        /// Whether the lines are complete. If false, only the whole page has everything.
        known: bool,
    },
    /// A client waits for access to a page of another rack, for which
    /// [`RackMachine::known_access`](super::RackMachine::known_access) has returned `None`.
    AccessWanted {
        /// The client's call.
        caller: Caller,
        /// The page.
        page: PageId,
        /// The access.
        access: Access,
    },
    /// The metadata server has answered a [`RackAction::LocatePage`], or its daemon has not reached
    /// it.
    PageLocated {
        /// The page.
        page: PageId,
        /// The number of the question; 0 if the question was none of the machine's.
        question: u64,
        /// The answer.
        located: Located,
    },
    /// A home has answered a [`RackAction::RequestLease`].
    LeaseAnswered {
        /// The page.
        page: PageId,
        /// The number of the request.
        question: u64,
        /// The home.
        home: RackId,
        /// The answer.
        answer: LeaseAnswer,
    },
    /// A [`RackAction::RequestLease`] will not be answered: the endpoint has ended, or there was no
    /// connection within a lease.
    LeaseUnanswered {
        /// The page.
        page: PageId,
        /// The number of the request.
        question: u64,
    },
    /// The page's home has executed a write for this rack, and the page does not move there.
    WrittenByHome {
        /// The page.
        page: PageId,
        /// Its home.
        home: RackId,
    },
    /// A home calls back a lease that this rack holds, or its right to do more than read.
    LeaseRevoked(Revocation),
    /// A holder has returned a lease that this rack has granted, or its right to do more than read.
    LeaseReturned(Revocation),
    /// An operation begun with [`RackMachine::begin`](super::RackMachine::begin) has ended,
    /// successfully or not.
    OperationEnded {
        /// The page.
        page: PageId,
        /// The endpoint of its lease.
        endpoint: EndpointToken,
        /// The access.
        access: Access,
    },
    /// No operation that the other rack has posted over the endpoint can land here any more.
    EndpointFenced(EndpointToken),
    /// The endpoint has ended: no operation over it, of either side, can land any more.
    EndpointEnded(EndpointToken),
    /// The last object of a page was freed, and the page word is leaving now.
    PageFreed {
        /// The frame.
        frame: FrameId,
        /// The page.
        page: PageId,
    },
    /// Another rack asks for a lease that permits a replica of a page of this rack.
    ReplicaRequested(PageId),
    /// A user of this rack or of another waits to write, free or give away a page, which may be
    /// shared.
    WriteNeeded(PageId),
    /// Clients read a page of another rack so much that a replica would pay off.
    ReplicaWanted(PageId),
    /// A [`RackAction::CopyReplica`] has ended. Each ends in bounded time.
    ReplicaCopied {
        /// The page.
        page: PageId,
        /// The endpoint of its lease.
        endpoint: EndpointToken,
        /// Whether all bytes were copied.
        whole: bool,
    },
    /// Other uses need the frames of replicas.
    FramesNeeded,
    /// Of the exchange of objects with other racks.
    Exchange(ExchangeEvent),
    /// Of the recovery of reservations.
    Recovery(RecoveryEvent),
    /// Of locks.
    Lock(LockEvent),
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An action for the shell of a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RackAction {
    /// Send a message about a swap to the metadata server.
    TellServer(ToServer),
    /// Send a message about a swap to another rack.
    TellRack(RackId, Between),
    /// Store the record of a swap: words 1 and up first, word 0 last.
    StoreRecord {
        /// The index of the record.
        slot: usize,
        /// Its words.
        words: [u64; RECORD_WORDS],
    },
    /// Store 0 in word 0 of a record and nothing else, so that a crash leaves no half record.
    EraseRecord {
        /// The index of the record.
        slot: usize,
    },
    /// Store a page word.
    StoreWord(FrameId, PageWord),
    /// A frame was frozen. Count the lines of each client's latest log entry that names it as
    /// dirty: the client may still be about to store them, since an earlier swap.
    NoteLastWrites(FrameId),
    /// Copy a page of another rack with one-sided operations, in chunks. After the commit it is
    /// copied again if that rack has lost the dirty lines in a restart.
    CopyPage {
        /// The swap.
        swap: SwapId,
        /// The other rack.
        from: RackId,
        /// Its frame.
        theirs: FrameId,
        /// The frame of this rack.
        ours: FrameId,
    },
    /// Send the dirty lines of the page, those of clients' dirty logs included, to its new home, or
    /// that they are not known. No client writes the page any more.
    SendDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The page's new home.
        to: RackId,
        /// The page's frame here.
        frame: FrameId,
        /// Whether the shell knows all dirty lines: the page was frozen in this incarnation.
        known: bool,
    },
    /// Store the bytes of [`RackEvent::DirtyLinesReceived`] in this frame.
    ApplyDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The frame.
        frame: FrameId,
    },
    /// Request a lease of the page from its home, after connecting if necessary. Each request ends
    /// with [`RackEvent::LeaseAnswered`] or [`RackEvent::LeaseUnanswered`].
    RequestLease {
        /// The page.
        page: PageId,
        /// Its home.
        home: RackId,
        /// The number of the request.
        question: u64,
        /// The access that the lease must permit.
        access: Access,
        /// Whether the lease should permit a replica.
        replica: bool,
    },
    /// Ask the metadata server for the page's home. Each question ends with
    /// [`RackEvent::PageLocated`].
    LocatePage {
        /// The page.
        page: PageId,
        /// The number of the question.
        question: u64,
    },
    /// Ask the metadata server for the members of the pool.
    AskForMembers,
    /// Answer a client's call.
    Answer {
        /// The call.
        caller: Caller,
        /// The answer.
        answer: RackAnswer,
    },
    /// End the endpoint over which requests are sent to this rack, whose memory is gone.
    DisconnectRack(RackId),
    /// Ask the holder to return a lease, or the right to do more than read.
    RevokeLease(Revocation),
    /// Send the home the return of a lease, or of the right to do more than read.
    ReturnLease(Revocation),
    /// Fence the endpoint; report [`RackEvent::EndpointFenced`] when nothing lands over it any
    /// more.
    FenceEndpoint(EndpointToken),
    /// Execute a heavy barrier, so that the access slots of this rack's clients can be scanned.
    Barrier,
    /// The page has no user any more: its word becomes free.
    FreeFrame {
        /// The frame.
        frame: FrameId,
        /// The page.
        page: PageId,
    },
    /// Copy the page with one-sided reads, under a lease with which the machine has begun the
    /// operation, and report [`RackEvent::ReplicaCopied`].
    CopyReplica {
        /// The page.
        page: PageId,
        /// The lease.
        lease: Lease,
        /// The destination frame. It stays free, but must not be reused before the operation has
        /// ended.
        ours: FrameId,
    },
    /// Publish the replica: clients may read the frame until `until` on this rack's clock. The
    /// shell stores the time before the number. For a replica that is published already this
    /// extends the time.
    PublishReplica {
        /// The page.
        page: PageId,
        /// The frame.
        ours: FrameId,
        /// The number of the replica.
        copy: CopyId,
        /// The end time.
        until: Time,
    },
    /// Hide the replica in this frame: a client that loads the frame's replica number afterwards
    /// finds none.
    HideReplica(FrameId),
    /// Of the exchange of objects with other racks.
    Exchange(ExchangeAction),
    /// Of the recovery of reservations.
    Recovery(RecoveryAction),
    /// Of locks.
    Lock(LockAction),
    /// Append to the histories of pages.
    Record(RackRecord),
}

/// An event for the histories of pages and for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackRecord {
    /// Of a swap.
    Swap(SwapEvent),
    /// The page is shared: nothing is written in it.
    Shared(PageId),
    /// The sharing of the page has ended.
    Unshared(PageId),
}
