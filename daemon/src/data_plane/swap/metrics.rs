//! Metrics of swaps.

use rackpool_metrics::Histogram;
use rackpool_proto::swap::SwapEvent;
use rackpool_sync::atomic::AtomicU64;
use rackpool_wire::control::SwapStatus;
use rackpool_wire::swap::{PrepareRefusal, RequestRefusal};

use crate::data_plane::command::{count, get, set};

/// Why a rack does not get a page that it requests, or does not request it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Refused {
    /// This rack has neither a free frame nor a colder page to exchange.
    NoColdPage,
    /// This rack's copies have used up the bandwidth budget.
    Budget,
    /// The page's home is this rack by now.
    AtHome,
    /// The metadata server knows no such page.
    NoSuchPage,
    /// The page to be exchanged does not belong to this rack.
    NotYours,
    /// Too many racks request pages.
    QueueFull,
    /// The page is at least as hot at its home.
    Hotter,
    /// The same, and the page is mostly read.
    ReadHot,
    /// The page has come to its home recently.
    Rests,
    /// The page is in another swap, or holds no objects.
    Unavailable,
    /// The home has no frame or no swap record left.
    Full,
}

/// Names of [`Refused`], in the order of its variants.
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

/// Metrics of swaps, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct SwapMetrics {
    /// Swaps that this rack requested of another one.
    pub(crate) asked: AtomicU64,
    /// Swaps that another rack requested of this one.
    pub(crate) served: AtomicU64,
    /// Pages that have arrived by swaps.
    pub(crate) arrived: AtomicU64,
    /// Pages that have left by swaps.
    pub(crate) departed: AtomicU64,
    /// Swaps that were begun and aborted.
    pub(crate) given_up: AtomicU64,
    /// Forwarded writes that this rack executed in moving pages.
    pub(crate) forwarded: AtomicU64,
    /// Bytes of pages copied to this rack, including those of aborted swaps.
    pub(crate) copied_bytes: AtomicU64,
    refused: [AtomicU64; REFUSED.len()],
    /// How long writers of a page had to wait because it moved.
    pub(crate) pauses: Histogram,
}

impl SwapMetrics {
    /// Counts a refusal.
    pub(super) fn refuse(&self, why: Refused) {
        if let Some(counter) = self.refused.get(why as usize) {
            count(counter);
        }
    }

    /// Returns the number of refusals for each reason.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REFUSED.into_iter().zip(self.refused.iter().map(get))
    }

    /// Adds copied bytes.
    pub(super) fn add_copied(&self, bytes: u64) {
        set(&self.copied_bytes, get(&self.copied_bytes) + bytes);
    }

    /// Returns all metrics, for operators.
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

    /// Counts an event of the machine.
    pub(super) fn note(&self, event: &SwapEvent) {
        match event {
            SwapEvent::Arrived(_) => count(&self.arrived),
            SwapEvent::Departed(_) => count(&self.departed),
            SwapEvent::Aborted(_) => count(&self.given_up),
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
            SwapEvent::Thawed(_) | SwapEvent::Lost(_) | SwapEvent::Damaged(..) => {}
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
