//! The simulator finds bugs: each of these is planted, and found within so many seeds.

mod planted_bug;

use planted_bug::{Planted, find};
use rackpool_sim::{Bug, run_with};

/// The bug, the seed to begin with, and within how many it must be found. The rare ones do not
/// begin at 0, or the test would take a minute.
const PLANTED: [(Bug, u64, u64); 71] = [
    (Bug::ForgetOneLease, 0, 10),
    (Bug::ForgetEarlierLeases, 0, 20),
    (Bug::TakeAnyReturn, 90, 40),
    (Bug::UseExpiredLease, 0, 20),
    (Bug::TakeOvertakenGrant, 0, 40),
    (Bug::ReturnBeforeDrain, 0, 10),
    (Bug::SkipDrain, 0, 20),
    (Bug::CommitBeforeCopy, 0, 20),
    (Bug::ReuseEpoch, 0, 10),
    (Bug::ThawBeforeLeft, 0, 10),
    (Bug::LeftBeforeReturned, 0, 20),
    (Bug::WriteBeforeLeft, 250, 40),
    (Bug::LeftInDoubt, 0, 20),
    (Bug::LeftWhileRead, 0, 20),
    (Bug::WaitForReaders, 0, 20),
    (Bug::TakeAnyLeft, 0, 20),
    (Bug::PulledBeforeDoubt, 0, 10),
    (Bug::WriteUnderReadLease, 0, 10),
    (Bug::KeepRightToWrite, 0, 20),
    (Bug::GrantWriteWhileFrozen, 0, 20),
    (Bug::ForgetRightToWrite, 0, 20),
    (Bug::FreeSpareEarly, 40, 40),
    (Bug::ThawInDoubt, 0, 20),
    (Bug::ForgetDoubt, 0, 20),
    (Bug::CommitEnded, 0, 20),
    (Bug::AnswerBeforeDurable, 0, 20),
    (Bug::DenyWithoutEnding, 0, 20),
    (Bug::AskOnce, 0, 20),
    (Bug::AnswerForTheDead, 670, 40),
    (Bug::ReuseDamagedRecord, 0, 30),
    (Bug::EraseFromTail, 0, 30),
    (Bug::AskAtEachAnswer, 40, 40),
    (Bug::FreeUnderLeases, 150, 40),
    (Bug::IgnoreFrozenWord, 0, 20),
    (Bug::ReleaseBeforeDrain, 0, 40),
    (Bug::ForgetEarlierCopies, 0, 40),
    (Bug::ForgetLostCopies, 140, 40),
    (Bug::ThawWithCopies, 0, 10),
    (Bug::ShareForEver, 0, 20),
    (Bug::ShareBeforeDrain, 0, 40),
    (Bug::ReadAfterTheLease, 530, 40),
    (Bug::AnswerBeforeHiding, 0, 10),
    (Bug::TrustCopiesOverARestart, 1190, 40),
    (Bug::LookOnlyBefore, 0, 40),
    (Bug::ShowWhatIsTaken, 0, 20),
    (Bug::ReadHalfACopy, 40, 40),
    (Bug::ReplyBeforeDurable, 0, 10),
    (Bug::ShowBeforeDurable, 0, 10),
    (Bug::AnswerWithoutRenewing, 0, 10),
    (Bug::TakeAnyConnection, 20, 40),
    (Bug::PushToFirstConnection, 0, 10),
    (Bug::RegisterTheDead, 60, 40),
    (Bug::ForgetBoot, 0, 10),
    (Bug::SwapWithoutStore, 0, 20),
    (Bug::ForgetRestartLease, 40, 40),
    (Bug::BelieveTheStore, 0, 20),
    (Bug::WriteBeforeNoted, 40, 40),
    (Bug::SayNothingOfWriters, 0, 20),
    (Bug::PullPastTheMark, 90, 40),
    (Bug::WriteOnAfterTheCommit, 0, 20),
    (Bug::ForgetStale, 0, 20),
    (Bug::ReadStaleCopy, 0, 20),
    (Bug::LeaveBeforeMerged, 0, 20),
    (Bug::TrustDeltaOverARestart, 0, 40),
    (Bug::ForgetOneWrite, 0, 20),
    (Bug::SendWhileOpen, 0, 20),
    (Bug::SendBeforeWritersAreOut, 260, 40),
    (Bug::TrustWritersOverARestart, 3860, 40),
    (Bug::NoteAfterWriting, 1570, 40),
    (Bug::OverlookWhoTraced, 10000, 40),
    (Bug::ForgetLinesOfTheDead, 240, 40),
];

#[test]
fn every_planted_bug_is_found_by_a_seed_that_a_sound_world_survives() {
    for (bug, from, within) in PLANTED {
        find(bug, from, within);
    }
}

#[test]
fn a_failure_names_its_seed_and_replays_identically() {
    let failure = find(Bug::SkipDrain, 0, 20);
    assert!(failure.to_string().contains(&format!("cargo x sim --seed {}", failure.seed)));
    assert_eq!(run_with(failure.seed, Planted(Bug::SkipDrain)), Err(failure));
}
