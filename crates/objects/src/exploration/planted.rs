/// A mistake of a program. The model makes the steps that such a program would make, so that the
/// product has no code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Step 2: the program does not search after it has registered.
    RegisterWithoutSearch,
    /// The words of a replica are those that an earlier use of its memory has left.
    LeaveWords,
    /// Step 3 before step 1, and the replica is ready at once.
    PublishBeforeRegister,
    /// Step 4 is left out.
    ReadyWithoutCheck,
    /// Step 4: the program does not read the registration, and only searches.
    ReadyWithoutRegistration,
    /// Step 4: the program does not search, and only reads the registration.
    ReadyWithoutSearch,
    /// The registration is changed whatever it is by then.
    ReplaceAnyRegistration,
    /// A replica is removed whichever it is by then.
    RemoveAnyReplica,
    /// A replica that is not ready is never taken for abandoned.
    KeepAbandoned,
    /// A replica is used before it is ready.
    UseUnready,
    /// A replica is made ready when it is published.
    ReadyBeforeFilled,
    /// A replica is filled that is not pinned.
    FillWithoutPin,
    /// A replica that can't be made ready is not removed.
    LeaveUnready,
    /// A program waits also for a replica that does not grow.
    WaitForKilled,
    /// A delete removes the object before its replicas.
    RemoveObjectFirst,
    /// A delete leaves the registration open.
    LeaveOpen,
    /// A delete removes the registration before the object.
    RemoveRegistrationFirst,
    /// A delete removes the object whichever version it has by then.
    RemoveAnyObject,
    /// An orphan is removed whatever the registration is by then.
    RemoveAnyRegistration,
    /// A pin counts without a second search.
    PinWithoutSearch,
    /// Bytes from another rack count without a search after them.
    CopyWithoutSearch,
    /// An access that failed fails the call without a search: what it was for may be gone.
    FailWithoutSearch,
    /// A piece is counted before it is there.
    CountBeforeBytes,
    /// Bytes from a replica are taken for the object's, so a wrong checksum ends the get.
    TrustReplica,
    /// The checksum is not compared.
    IgnoreChecksum,
    /// A program waits also for a source that does not grow.
    WaitForSource,
    /// A registration whose memory is lost counts as absent.
    TakeLostForAbsent,
    /// A repair leaves the replicas of objects that are lost.
    RepairKeepsReplicas,
    /// A repair removes a lost registration although its object is there.
    RepairDropsRegistration,
    /// A repair stores a lost registration anew as an open one.
    RepairReopens,
    /// A spill leaves the replicas.
    SpillKeepsReplicas,
    /// A stub is published before its file is written.
    StubBeforeFile,
    /// An object from a file replaces the entry whichever it is by then.
    RestoreAnyVersion,
    /// A sweep removes a file that another program has locked.
    SweepWithoutLock,
    /// A sweep does not search again after it has read which file the object names.
    SweepWithoutSearch,
    /// The daemon reuses memory although it is pinned.
    IgnorePins,
}
