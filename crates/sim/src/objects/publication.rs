//! The steps of a publication: the word that each one accesses.

use rackpool_model::{Armed, ArmedMode, GlobalAddr};
use rackpool_proto::publication::{WordAccess, WordAnswer};

use super::ObjectFile;
use super::words::{TAG, WordUse, linked};

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Compare,
    /// Unlinks an object without another one.
    Unlink,
    /// Publishes an object in a place, from which it can be borrowed.
    Give,
    Borrow {
        publishes: bool,
    },
    /// Makes a link that points to an aborted object point to what that stands for.
    Help,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    RemoveFromMagazine,
    ReadPlace,
    BorrowObject,
    WriteOwner,
    WriteStamp,
    ReadLink,
    /// Reads the owner word of the object that the link points to.
    ReadOwner,
    /// Reads the link again: if it still points to the object, the token was that of the linked
    /// object, and not of another one that has its memory by now.
    ConfirmLink(u64),
    ClearOwner(u64),
    ReadReplaced(u64),
    ReadExpectedStamp {
        owner: u64,
        replaced: GlobalAddr,
    },
    ReadRealStamp {
        owner: u64,
        replaced: GlobalAddr,
        stamp: u64,
    },
    ResolveOther {
        owner: u64,
        counts: bool,
    },
    ReadStandIn,
    Restore(u64),
    RemoveTag,
    ReadStamp,
    WriteReplaced,
    WriteExpectedStamp,
    Arm,
    Publish,
    /// The swap got no answer: the link tells whether it was made, perhaps.
    LookAtLink,
    ClearOwnOwner,
    ReadStampAgain,
    ResolveOwn(bool),
    Unlink,
    Settle,
    MarkReplaced,
    Note,
    PutBack,
    ClearRecord,
}

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Found(u64),
    /// It was not executed.
    Refused,
    /// It may or may not have been executed, and will not be executed later.
    Unanswered,
    /// The daemon has died: it may still be executed.
    Orphaned,
}

/// A publication in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Publication {
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    pub(super) token: u64,
    pub(super) object: GlobalAddr,
    /// The link, or the place that is to hold the object.
    pub(super) link: GlobalAddr,
    /// The place of a borrowed object.
    pub(super) place: GlobalAddr,
    pub(super) expected: u64,
    /// The new value of the link.
    pub(super) word: u64,
    pub(super) stamp: u64,
    pub(super) is_published: bool,
    /// A swap that is repeated until its outcome is known has got no answer before.
    pub(super) asked_before: bool,
    /// The number of the request that was sent, and the daemon that sent it.
    pub(super) waits: Option<(u64, u64)>,
    pub(super) outcome: Option<Outcome>,
}

impl Publication {
    pub(super) fn replaced(&self) -> GlobalAddr {
        linked(self.expected).unwrap_or(GlobalAddr::NULL)
    }

    pub(super) fn armed(&self) -> Armed {
        let mode = match self.kind {
            Kind::Compare if !self.replaced().is_null() => ArmedMode::Compare(self.stamp),
            Kind::Unlink => ArmedMode::Settle(0),
            Kind::Borrow { .. } => ArmedMode::Borrowed(self.place.raw()),
            _ => ArmedMode::Plain,
        };
        let mask = if self.kind == Kind::Unlink { u64::MAX } else { !TAG };
        let (object, link, replaced) = (self.object.raw(), self.link.raw(), self.replaced().raw());
        Armed { object, token: self.token, link, word: self.word, mask, replaced, mode }
    }

    pub(super) const fn compares(&self) -> bool {
        matches!(self.kind, Kind::Compare) && self.expected != 0
    }
}

pub(super) fn word_of(object: GlobalAddr, index: u64) -> GlobalAddr {
    GlobalAddr::from_raw(object.raw() + 8 * index)
}

pub(super) const fn swap(expected: u64, new: u64) -> WordUse {
    WordUse::Atomic(WordAccess::Swap { expected, new })
}

pub(super) const READ: WordUse = WordUse::Atomic(WordAccess::Read);

/// Returns the access of a step; `None` for a store in the client's file.
pub(super) fn access(one: &Publication) -> Option<(GlobalAddr, WordUse)> {
    let object = linked(one.expected).unwrap_or(GlobalAddr::NULL);
    Some(match one.stage {
        Stage::ReadPlace => (one.place, READ),
        Stage::BorrowObject => (one.place, swap(one.object.raw(), one.token)),
        Stage::WriteOwner => (one.object, WordUse::Write(one.token)),
        Stage::WriteStamp => (word_of(one.object, 1), WordUse::Write(one.stamp)),
        Stage::ReadLink | Stage::ConfirmLink(_) | Stage::LookAtLink => (one.link, READ),
        Stage::ReadOwner => (object, READ),
        Stage::ClearOwner(owner) => (object, swap(owner, 0)),
        Stage::ReadReplaced(_) | Stage::ReadStandIn => (word_of(object, 2), READ),
        Stage::ReadExpectedStamp { .. } => (word_of(object, 3), READ),
        Stage::ReadRealStamp { replaced, .. } => (word_of(replaced, 1), READ),
        Stage::ResolveOther { owner, counts } => {
            (object, swap(owner, if counts { 0 } else { !owner }))
        }
        Stage::Restore(word) => (one.link, swap(one.expected, word)),
        Stage::RemoveTag => (one.link, swap(one.expected, object.raw())),
        Stage::ReadStamp | Stage::ReadStampAgain => (word_of(object, 1), READ),
        Stage::WriteReplaced => {
            let replaced = if one.compares() { object.raw() } else { 0 };
            (word_of(one.object, 2), WordUse::Write(replaced))
        }
        Stage::WriteExpectedStamp => (word_of(one.object, 3), WordUse::Write(one.stamp)),
        Stage::Publish => (one.link, swap(one.expected, one.word)),
        Stage::ClearOwnOwner => (one.object, swap(one.token, 0)),
        Stage::ResolveOwn(counts) => {
            (one.object, swap(one.token, if counts { 0 } else { !one.token }))
        }
        Stage::Unlink => (one.link, swap(one.word, object.raw())),
        Stage::Settle => (one.link, swap(one.token, 0)),
        Stage::PutBack => {
            let back = if one.is_published { object } else { one.object };
            (one.place, swap(one.token, back.raw()))
        }
        Stage::RemoveFromMagazine
        | Stage::Arm
        | Stage::MarkReplaced
        | Stage::Note
        | Stage::ClearRecord => return None,
    })
}

pub(super) const fn outcome(answer: WordAnswer) -> Outcome {
    match answer {
        WordAnswer::Value(found) => Outcome::Found(found),
        WordAnswer::Unanswered => Outcome::Unanswered,
        _ => Outcome::Refused,
    }
}

/// The swap was made.
pub(super) const fn made(one: &mut Publication) -> Option<Stage> {
    one.is_published = true;
    Some(if one.compares() {
        Stage::ReadStampAgain
    } else if matches!(one.kind, Kind::Unlink) {
        Stage::MarkReplaced
    } else {
        Stage::ClearOwnOwner
    })
}

pub(super) const fn after_made(one: &Publication) -> Stage {
    match one.kind {
        Kind::Borrow { .. } => Stage::PutBack,
        _ => Stage::Note,
    }
}

/// Stores the fields of an armed record, then its state.
pub(super) fn arm(file: &mut ObjectFile, armed: &Armed) {
    let (state, aside) = armed.state_and_aside();
    let Armed { object, token, link, word, mask, replaced, .. } = *armed;
    file.record = [state, object, token, link, word, mask, replaced, aside];
}
