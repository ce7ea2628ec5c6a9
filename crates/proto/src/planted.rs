//! Bugs that the simulator's tests plant, to see that the simulator finds them.
//!
//! The machines have a type parameter that says which bug they have. Everywhere but in those tests
//! it is [`Sound`], which has none: the compiler then leaves the bugs out.

use core::fmt::Debug;

/// A way in which a machine can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The home of leases forgets one when the page is needed.
    ForgetOneLease,
    /// A restarted home does not wait for leases of its earlier life.
    ForgetEarlierLeases,
    /// A lease given back ends a newer one too.
    TakeAnyReturn,
    /// A holder uses a lease that has run out.
    UseExpiredLease,
    /// A holder counts a grant that its own call back has overtaken.
    TakeOvertakenGrant,
    /// A holder gives a lease back while operations are under way.
    ReturnBeforeQuiesce,
    /// A rack copies without waiting for writers and leases.
    SkipQuiesce,
    /// The requester commits while its copy is under way.
    CommitBeforeCopy,
    /// The page keeps its epoch when it moves.
    ReuseEpoch,
    /// The page that has come may be written before its old home has left it.
    ThawBeforeLeft,
    /// The old home says that it has left while leases are out.
    LeftBeforeReturned,
    /// The old home says that it has left while its own readers still read the page there.
    LeftWhileRead,
    /// The old home turns its readers away only when they can go on elsewhere, however long that
    /// takes.
    WaitForReaders,
    /// The old home says that it has left before it knows that the swap is committed.
    LeftInDoubt,
    /// A rack writes the page that it gives at its new home before it has left it.
    WriteBeforeLeft,
    /// An old home that has left one page counts as having left every page it gave.
    TakeAnyLeft,
    /// A home answers that it has copied, and may still give the swap up.
    PulledBeforeDoubt,
    /// An old home that has let the page be copied writes it for others before its peer has noted
    /// that its copy lacks that.
    WriteBeforeNoted,
    /// A rack that writes its page for others lets it be copied without a word of that.
    SayNothingOfWriters,
    /// A home copies a page that is written, and does not note it.
    PullPastTheMark,
    /// An old home writes the page for others although it is committed that it goes.
    WriteOnAfterTheCommit,
    /// A new home hears that its copy is stale, and does not note it.
    ForgetStale,
    /// A new home lets its copy be read before it has what it lacks.
    ReadStaleCopy,
    /// An old home leaves the page before the new one has what was written.
    LeaveBeforeApplied,
    /// A restarted old home sends what it knows to be written: nothing.
    TrustDirtyLinesOverARestart,
    /// The simulator's racks write for others and do not remember where.
    ForgetOneWrite,
    /// A holder writes under a lease for reading.
    WriteUnderReadLease,
    /// A holder that gives the right to write back goes on writing.
    KeepRightToWrite,
    /// A home gives leases for writing of a frozen page.
    GrantWriteWhileFrozen,
    /// A home that gives a lease for reading forgets the one for writing before it.
    ForgetRightToWrite,
    /// A spare frame is free again while a copy into it is under way.
    FreeSpareEarly,
    /// The requester gives up by itself after it has asked for the commit.
    ThawInDoubt,
    /// A restarted rack gives up a swap in doubt.
    ForgetDoubt,
    /// The home does not look at the ticket: an older acceptance counts for the present one.
    IgnoreTicket,
    /// The metadata server commits a swap that is not begun any more.
    CommitEnded,
    /// The metadata server answers before the commit is durable.
    AnswerBeforeDurable,
    /// The metadata server tells racks of a commit before it is durable.
    TellOfCommitsBeforeDurable,
    /// The metadata server says "given up" without ending the swap.
    DenyWithoutEnding,
    /// An requester asks the metadata server once, and not again.
    AskOnce,
    /// A restarted holder answers for leases of its dead predecessor, whose operations may land.
    AnswerForTheDead,
    /// A damaged record counts as empty: a later swap is noted over it.
    ReuseDamagedRecord,
    /// The simulator erases a record from its last word on: a crash leaves half of one.
    EraseFromTail,
    /// The simulator's racks ask again with each answer: questions multiply.
    AskAtEachAnswer,
    /// The simulator's racks free a page although leases of it are out.
    FreeUnderLeases,
    /// A restarted home lets a page be written that its earlier life shared.
    ForgetEarlierCopies,
    /// A home forgets copies whose endpoint is gone.
    ForgetLostCopies,
    /// A home lets a shared page be written while there are copies.
    ThawWithCopies,
    /// A sharing that nobody uses goes on.
    ShareForEver,
    /// A home lets a page be copied while writers are in it.
    ShareBeforeQuiesce,
    /// A copy is read although its time is over.
    ReadAfterTheLease,
    /// A rack gives a lease back before it hides the copy.
    AnswerBeforeHiding,
    /// A restarted rack leaves the copies of its earlier life shown.
    TrustCopiesOverARestart,
    /// A client does not look whether the copy is still shown when it has read.
    LookOnlyBefore,
    /// A frame is given away, and its copy stays shown.
    ShowWhatIsTaken,
    /// A copy of an earlier sharing is read.
    ReadAnOlderCopy,
    /// A copy is read before all of it is there.
    ReadHalfACopy,
    /// A rack sends what was written in a page, and clients of its write on.
    SendWhileOpen,
    /// A rack sends what was written in a page while clients are in the midst of a write.
    SendBeforeWritersAreOut,
    /// A restarted rack does not wait for those who have begun to write in its earlier life.
    TrustWritersOverARestart,
    /// A client of the simulator notes what it writes when it has written.
    NoteAfterWriting,
    /// The simulator's racks do not wait in a page that is not dirty-logged for who writes since it
    /// was.
    OverlookDirtyLoggers,
    /// The simulator's racks forget at the beginning of a swap who may still write since an earlier
    /// one.
    ForgetWhoWritesStill,
    /// The simulator's racks forget what clients have noted that are dead.
    ForgetLinesOfTheDead,
    /// A client of the simulator writes to a page although its word is frozen.
    IgnoreFrozenWord,
    /// A vacated frame is free although readers are in it.
    ReleaseBeforeQuiesce,
    /// The metadata server answers requests before their changes are durable.
    ReplyBeforeDurable,
    /// The metadata server shows what is being written.
    ShowBeforeDurable,
    /// The metadata server answers a heartbeat without renewing the lease.
    AnswerWithoutRenewing,
    /// What a rack says of swaps counts over any connection.
    TakeAnyConnection,
    /// What a rack is told of swaps goes to the connection over which it registered first.
    PushToFirstConnection,
    /// An older life of a daemon takes its rack back.
    RegisterTheDead,
    /// Each start of the metadata server takes itself for the first.
    ForgetBoot,
    /// The metadata server goes on with swaps although its store has failed.
    SwapWithoutStore,
    /// A client of the simulator takes what the store has refused for not done.
    BelieveTheStore,
    /// The metadata server gives leases at its start and counts them from before it could be
    /// reached.
    ForgetRestartLease,
}

/// Says which bugs a machine has.
pub trait Bugs: Copy + Debug {
    /// Whether this one is planted.
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
