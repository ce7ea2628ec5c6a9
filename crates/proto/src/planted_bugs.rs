//! Bugs that tests plant, to check that the simulator, or the worlds of `tests/multicast.rs` and
//! `tests/groups.rs`, find them.
//!
//! Each machine has a type parameter that says which bugs it has. Everywhere else it is [`Sound`],
//! which has none, so the compiler removes the code of the bugs.

use core::fmt::Debug;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The lease home forgets one lease when the page is needed.
    ForgetOneLease,
    /// A restarted lease home does not wait for leases of earlier incarnations.
    ForgetEarlierLeases,
    /// The return of a lease also ends a newer lease.
    TakeAnyReturn,
    /// A lease holder uses an expired lease.
    UseExpiredLease,
    /// A lease holder accepts a grant that its own call back has overtaken.
    TakeOvertakenGrant,
    /// A lease holder returns a lease while operations under it are in flight.
    ReturnBeforeQuiesce,
    /// A rack lets its page be copied without waiting for writers and leases.
    SkipQuiesce,
    /// The requester sends `Commit` while its copy is in flight.
    CommitBeforeCopy,
    /// The page keeps its epoch when it moves.
    ReuseEpoch,
    /// The new home makes the page writable before the old home has quiesced it.
    ThawBeforeQuiesced,
    /// The old home sends `Quiesced` while leases are out.
    LeftBeforeReturned,
    /// The old home sends `Quiesced` while its own clients still read the page there.
    LeftWhileRead,
    /// The old home waits without limit for the lease prefetch before it turns its readers away.
    WaitForReaders,
    /// The old home sends `Quiesced` while the swap is in doubt.
    LeftInDoubt,
    /// `Quiesced` for one page counts for every page that the peer gave.
    TakeAnyLeft,
    /// The home sends `Copied` before it is in doubt, so it may still abort the swap.
    CopiedBeforeDoubt,
    /// The old home forwards writes before the peer has recorded that its copy is incomplete.
    WriteBeforeNoted,
    /// A rack that expects writers does not say so in `Prepared` or `Copy`.
    SayNothingOfWriters,
    /// The home ignores that `Copy` announces writers.
    CopyPastTheMark,
    /// The old home goes on forwarding writes after the commit.
    WriteOnAfterTheCommit,
    /// A rack does not record that its copy is incomplete.
    ForgetStale,
    /// The new home makes an incomplete copy readable before the dirty lines are applied.
    ReadStaleCopy,
    /// The old home turns its readers away before the new home has applied the dirty lines.
    LeaveBeforeApplied,
    /// A restarted old home sends its empty dirty lines as complete.
    TrustDirtyLinesOverARestart,
    /// A rack executes a forwarded write and does not log its line.
    ForgetOneWrite,
    /// A lease holder writes under a lease that permits reading only.
    WriteUnderReadLease,
    /// A lease holder that has returned the right to write goes on writing.
    KeepRightToWrite,
    /// The lease home grants leases for writing of a frozen page.
    GrantWriteWhileFrozen,
    /// The lease home grants leases for writing of a shared page.
    GrantWriteWhileShared,
    /// A lease home that grants a lease for reading forgets the earlier one for writing.
    ForgetRightToWrite,
    /// A spare frame becomes free while a copy into it is in flight.
    FreeSpareEarly,
    /// The requester aborts the swap after it has sent `Commit`.
    ThawInDoubt,
    /// A restarted rack aborts a swap in doubt.
    ForgetDoubt,
    /// The home does not check the ticket: a message about an older acceptance counts for the
    /// present one.
    IgnoreTicket,
    /// The metadata server commits a swap that has ended.
    CommitEnded,
    /// The metadata server sends the decision before the commit is durable.
    AnswerBeforeDurable,
    /// The metadata server names a commit to racks before it is durable.
    TellOfCommitsBeforeDurable,
    /// The metadata server answers "given up" without ending the swap.
    DenyWithoutEnding,
    /// A requester sends its request once and never repeats it.
    AskOnce,
    /// A requester gives away its last free frame.
    GiveLastFreeFrame,
    /// A restarted lease holder returns leases of its earlier incarnation, whose operations may
    /// still land.
    AnswerForTheDead,
    /// A damaged swap record counts as empty, and a later swap overwrites it.
    ReuseDamagedRecord,
    /// The simulator erases a record beginning with its last word, so a crash leaves half of it.
    EraseFromTail,
    /// A rack repeats a question with each answer, so questions multiply.
    AskAtEachAnswer,
    /// A denial of an earlier question counts for callers that began to wait later.
    DenyLaterCallers,
    /// A search does not go on when its lease request has ended without an answer.
    ForgetEndedRequest,
    /// The rack where a page was born is dead, and the metadata server is not asked whether the
    /// page has moved before.
    TrustGuessOfTheDead,
    /// A lease for reading answers callers that want to write.
    AnswerWritersByReadLease,
    /// Callers wait until their page is found, however long that takes.
    WaitForHomesWithoutLimit,
    /// A rack frees a page while leases of it are out.
    FreeUnderLeases,
    /// A rack scans the access slots of its clients without a heavy barrier before.
    SkipBarrier,
    /// A restarted home makes a page writable that its earlier incarnation shared.
    ForgetEarlierCopies,
    /// The lease home forgets replicas whose endpoint has ended.
    ForgetLostCopies,
    /// The home makes a shared page writable while replicas exist.
    ThawWithCopies,
    /// An unused sharing never ends.
    ShareForEver,
    /// The home permits replicas of a page before its writers are quiesced.
    ShareBeforeQuiesce,
    /// A client reads a replica after its end time.
    ReadAfterTheLease,
    /// A rack returns a lease before it hides the replica.
    AnswerBeforeHiding,
    /// A restarted rack leaves the replicas of its earlier incarnation published.
    TrustCopiesOverARestart,
    /// A client does not check after its read that the replica is still published.
    LookOnlyBefore,
    /// A frame is reused while its replica is still published.
    ShowWhatIsTaken,
    /// A replica of an earlier sharing is published again.
    ReadAnOlderCopy,
    /// A replica is published before its copy is complete.
    ReadHalfACopy,
    /// The old home sends the dirty lines without closing the page.
    SendWhileOpen,
    /// The old home sends the dirty lines while clients are in a write.
    SendBeforeWritersAreOut,
    /// A restarted old home does not wait for writers that began in its earlier incarnation.
    TrustWritersOverARestart,
    /// A client of the simulator logs a line after the store instead of before.
    NoteAfterWriting,
    /// A rack does not wait for clients that entered the page while it was
    /// dirty-logged and write it after dirty logging has ended.
    OverlookDirtyLoggers,
    /// At a freeze a rack does not read the last note of each client, whose store may
    /// still come from an earlier swap.
    ForgetWhoWritesStill,
    /// The simulator's racks forget the notes of dead clients.
    ForgetLinesOfTheDead,
    /// A client of the simulator writes a page although its word is frozen.
    IgnoreFrozenWord,
    /// A vacated frame becomes free while readers are in it.
    ReleaseBeforeQuiesce,
    /// The metadata server answers requests before their changes are durable.
    ReplyBeforeDurable,
    /// The metadata server answers reads from changes that are not durable yet.
    ShowBeforeDurable,
    /// The metadata server answers a heartbeat without renewing the lease.
    AnswerWithoutRenewing,
    /// Swap messages of a rack count over any connection.
    TakeAnyConnection,
    /// Swap messages to a rack go over the connection on which it registered first.
    PushToFirstConnection,
    /// An earlier incarnation of a daemon takes its rack back.
    RegisterTheDead,
    /// The metadata server uses the same boot number at each start.
    ForgetBoot,
    /// The metadata server continues swaps after its store has failed.
    SwapWithoutStore,
    /// A client of the simulator takes a change that the store failed to make durable for not done.
    BelieveTheStore,
    /// The metadata server grants leases at its start and counts them from before it could be
    /// reached.
    ForgetRestartLease,
    /// A rack sends the request of an exchange before it stores the record.
    SendBeforeRecord,
    /// A rack removes objects from where they are recorded before the record of their exchange has
    /// them.
    StrikeBeforeRecord,
    /// A rack sends the request of an exchange before it removes the objects from where they were
    /// recorded.
    SendBeforeStrike,
    /// A restarted rack leaves the objects of an exchange in the outbox too.
    LeaveInTheOutbox,
    /// A restarted rack removes the objects of an exchange that was sent from all cells, although
    /// clients may have got them again.
    StrikeWhatWasSent,
    /// A restarted rack forgets the objects of an exchange that it has received.
    ForgetReceived,
    /// A rack forgets the objects that another rack did not take back.
    DropMoved,
    /// A rack frees an object in a page that moves.
    FreeInMovingPage,
    /// A rack executes a repeated request again.
    ExecuteRepeated,
    /// A rack executes a request that is older than its record.
    IgnoreSequence,
    /// A rack allocates an object for another rack before the record names it.
    AllocateBeforeRecord,
    /// A restarted rack answers from its record with an object that was not allocated.
    KeepUnallocated,
    /// A rack rewrites the record of a served exchange while it says that it is valid.
    RewriteValidRecord,
    /// A restarted rack frees what dead clients have left while one-sided operations and requests
    /// of its earlier incarnation may land.
    ResolveBeforeEarlierRequestsEnd,
    /// The records of a dead client are resolved while its operations are under way.
    ResolveUnderOperations,
    /// The owner word is read before the link.
    ReadOwnerBeforeLink,
    /// An answer that the page is not in the rack counts as a word without link and token.
    TakeNotHereForNoObject,
    /// A rack that does not answer counts as a word without link and token.
    TakeSilenceForNoObject,
    /// The replaced object is freed although the link is not settled.
    FreeBeforeSettled,
    /// A borrowed object is not put back.
    ForgetBorrowed,
    /// A borrowed object is put back although it was published.
    PutBackPublished,
    /// A record is cleared before its object is noted elsewhere.
    ClearUndecided,
    /// A member of a multicast sets the bit of a block when it begins to read it.
    CountBlockBeforeBytes,
    /// Calls, plans and reports of an earlier epoch count.
    TakeAnyEpoch,
    /// A member of a multicast goes on reading after it has been called to a new epoch.
    ReadWhileWedged,
    /// A multicast to be visible together is published when the first rack is complete.
    ShowEarly,
    /// A member resumes from blocks of whatever object had the id before.
    ResumeAnyVersion,
    /// The root of a group overwrites messages that a member has not taken.
    OverwriteUntaken,
    /// A member of a group counts what it has read, whatever it is.
    CountUnverified,
    /// A member of a group ends with the longest stream that it sees, and decides nothing.
    EndUndecided,
    /// A member of a group decides before all others that it names have the stream.
    DecideBeforeReading,
    /// A member of a group ends as a survivor although the decision does not name it.
    EndThoughLeftOut,
    /// A waiting request for a lock does not keep later ones from being granted.
    OvertakeWaitingLocks,
    /// After an unlock the waiting requests are not looked at.
    ForgetWaitingLocks,
    /// The next holder is not told that a writer ended without an unlock.
    ForgetAbandonedLocks,
    /// A page moves while locks of it are held.
    MoveUnderLocks,
    /// A restarted home grants locks at once that other racks may hold.
    TrustInheritedLocks,
    /// The claims of readers are read without a barrier before.
    ReadClaimsWithoutBarrier,
    /// Readers that have taken a lock without the daemon are not found.
    OverlookSharedClaims,
    /// A lost lock is passed on while its holder's access is under way.
    PassLostLockAtOnce,
    /// A holder keeps a lock whose endpoint has ended.
    KeepLocksOfEndedEndpoints,
    /// A lock is passed on while its holder, whose endpoint has ended, reads cached lines.
    PassWhileCached,
    /// A home writes what a holder had not written back, though the lock has ended meanwhile.
    WriteBackOfEndedLocks,
    /// A claim gets another lock while the daemon has not ended its earlier one.
    ReuseEndingClaims,
    /// A lock is passed on without what its writer has not written back.
    ForgetLineCaches,
}

/// Selects the planted bugs of a machine.
pub trait Bugs: Copy + Debug {
    /// Returns true if `bug` is planted.
    fn has(self, bug: Bug) -> bool;
}

/// No bug is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sound;

impl Bugs for Sound {
    #[inline]
    fn has(self, _: Bug) -> bool {
        false
    }
}
