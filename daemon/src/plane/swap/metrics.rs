//! What there is to count of swaps.

use rackpool_metrics::Histogram;
use rackpool_proto::swap::SwapEvent;
use rackpool_sync::atomic::AtomicU64;
use rackpool_wire::control::SwapStatus;
use rackpool_wire::swap::{PrepareRefusal, RequestRefusal};

use crate::plane::command::{count, get, set};

/// Why a rack that wants a page does not get it, or gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Refused {
    /// This rack has nothing cold to give.
    NoColdPage,
    /// This rack has copied as much as it may.
    Budget,
    /// The page is at home here by now.
    AtHome,
    /// The metadata server knows no such page.
    NoSuchPage,
    /// What was offered is not this rack's.
    NotYours,
    /// Too many racks want pages.
    QueueFull,
    /// The home uses it as much.
    Hotter,
    /// The same, and it is mostly read.
    ReadHot,
    /// It has come to its home lately.
    Rests,
    /// It is in another swap, or holds nothing.
    Unavailable,
    /// The home has no frame or no record left.
    Full,
}

/// Names of [`Refused`], in its order.
const REFUSED: [&str; 11] = [
    "nothing to offer",
    "budget",
    "at home",
    "no such page",
    "not yours",
    "queue full",
    "hotter",
    "read-hot",
    "rests",
    "unavailable",
    "full",
];

/// Counts of swaps, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct SwapMetrics {
    /// Swaps that this rack asked another one for.
    pub(crate) asked: AtomicU64,
    /// Swaps that another rack asked this one for.
    pub(crate) served: AtomicU64,
    /// Pages that have come by swaps.
    pub(crate) arrived: AtomicU64,
    /// Pages that have gone by swaps.
    pub(crate) departed: AtomicU64,
    /// Swaps that were begun and given up.
    pub(crate) given_up: AtomicU64,
    /// Writes of others that were carried out here in pages that moved.
    pub(crate) forwarded: AtomicU64,
    /// Bytes of pages that were copied here, those of swaps that were given up included.
    pub(crate) copied_bytes: AtomicU64,
    refused: [AtomicU64; REFUSED.len()],
    /// For how long those who wanted to write a page had to wait because it moved.
    pub(crate) pauses: Histogram,
}

impl SwapMetrics {
    /// Counts a refusal.
    pub(super) fn refuse(&self, why: Refused) {
        if let Some(counter) = self.refused.get(why as usize) {
            count(counter);
        }
    }

    /// For each reason how often a swap was refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REFUSED.into_iter().zip(self.refused.iter().map(get))
    }

    /// So many bytes more have been copied.
    pub(super) fn add_copied(&self, bytes: u64) {
        set(&self.copied_bytes, get(&self.copied_bytes) + bytes);
    }

    /// All of them, for people.
    pub(crate) fn status(&self) -> SwapStatus {
        SwapStatus {
            asked: get(&self.asked),
            served: get(&self.served),
            arrived: get(&self.arrived),
            departed: get(&self.departed),
            given_up: get(&self.given_up),
            forwarded: get(&self.forwarded),
            copied_bytes: get(&self.copied_bytes),
            refused: self.refused().map(|(why, count)| (why.to_owned(), count)).collect(),
            pauses: self.pauses.micros(),
        }
    }

    /// Counts what the machine has to tell.
    pub(super) fn note(&self, event: &SwapEvent) {
        match event {
            SwapEvent::Arrived(_) => count(&self.arrived),
            SwapEvent::Departed(_) => count(&self.departed),
            SwapEvent::GaveUp(_) => count(&self.given_up),
            SwapEvent::NoColdPage(_) => self.refuse(Refused::NoColdPage),
            SwapEvent::RequestRefused(_, why) => self.refuse(match why {
                RequestRefusal::AtHome => Refused::AtHome,
                RequestRefusal::NoSuchPage => Refused::NoSuchPage,
                RequestRefusal::NotYours => Refused::NotYours,
                RequestRefusal::QueueFull => Refused::QueueFull,
            }),
            SwapEvent::PrepareRefused(_, why) => self.refuse(match why {
                PrepareRefusal::Hotter => Refused::Hotter,
                PrepareRefusal::ReadHot => Refused::ReadHot,
                PrepareRefusal::Rests => Refused::Rests,
                PrepareRefusal::Unavailable => Refused::Unavailable,
                PrepareRefusal::Full => Refused::Full,
            }),
            SwapEvent::Thawed(_)
            | SwapEvent::Quiesced(_)
            | SwapEvent::Lost(_)
            | SwapEvent::Damaged(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::PageId;

    use super::*;

    #[test]
    fn refusals_are_counted_by_their_reason() {
        let metrics = SwapMetrics::default();
        metrics.note(&SwapEvent::PrepareRefused(PageId(1), PrepareRefusal::Rests));
        metrics.note(&SwapEvent::PrepareRefused(PageId(1), PrepareRefusal::Full));
        metrics.note(&SwapEvent::RequestRefused(PageId(1), RequestRefusal::QueueFull));
        metrics.refuse(Refused::NoColdPage);
        let counted: Vec<_> =
            metrics.refused().filter_map(|(why, count)| (count == 1).then_some(why)).collect();
        assert_eq!(counted, ["nothing to offer", "queue full", "rests", "full"]);
    }
}
