//! The records that daemons keep of a page.

use std::fmt::Write as _;

use rackpool_model::RackId;
use rackpool_output::clock::utc_millis;
use rackpool_wire::history::{PageHistory, PageHistoryEvent, PageNote};
use rackpool_wire::metadata::DirectoryEntry;
use rackpool_wire::swap::{PrepareRefusal, RequestRefusal};

use crate::commands::json;

/// Returns the racks' records of the page, in order of time. Repeated events between two moves of
/// the page are merged into one record with their number.
pub(super) fn history(racks: &[(RackId, PageHistory)]) -> Vec<(RackId, PageNote)> {
    let notes = racks.iter().flat_map(|(rack, of)| of.notes.iter().map(|note| (*rack, *note)));
    let mut notes: Vec<(RackId, PageNote)> = notes.collect();
    notes.sort_by_key(|(_, note)| note.unix_ms);
    let mut told: Vec<(RackId, PageNote)> = Vec::new();
    let mut since_move = 0;
    for (rack, note) in notes {
        let moves = matches!(note.event, PageHistoryEvent::Arrived | PageHistoryEvent::Departed);
        let is_again = |(other, before): &&mut (RackId, PageNote)| {
            *other == rack && note.event.is_again(&before.event)
        };
        if !moves && let Some((_, before)) = told[since_move..].iter_mut().find(is_again) {
            before.times = before.times.saturating_add(note.times);
            before.last_unix_ms = before.last_unix_ms.max(note.last_unix_ms);
            continue;
        }
        told.push((rack, note));
        if moves {
            since_move = told.len();
        }
    }
    told
}

/// Returns whether the page holds objects, according to its home; `None` if the home was not asked.
pub(super) fn is_allocated(
    entry: &DirectoryEntry,
    racks: &[(RackId, PageHistory)],
) -> Option<bool> {
    let home = entry.home?;
    let (_, history) = racks.iter().find(|(rack, _)| *rack == home)?;
    Some(history.heat.at_home || entry.locked.is_some())
}

/// Writes hotness with one digit.
pub(super) fn degrees(milli: u64) -> String {
    format!("{:.1}", json::degrees(milli))
}

/// Describes a record.
pub(super) fn line(note: &PageNote) -> String {
    let here = degrees(note.milli);
    let mut text = match note.event {
        PageHistoryEvent::Requested { offered } => {
            format!("asks for it and offers {offered}: hotness {here} here")
        }
        PageHistoryEvent::NoColdPage => {
            format!("wants it, but has no colder page to exchange: hotness {here} here")
        }
        PageHistoryEvent::RequestRefused(reason) => {
            format!("does not get it: {}", request_refused(reason))
        }
        PageHistoryEvent::PrepareRefused(reason) => {
            format!("asks and does not get it: {}; hotness {here} here", prepare_refused(reason))
        }
        PageHistoryEvent::Refused { requester, milli, reason } => format!(
            "keeps it from {requester}: {}; hotness {here} here, {} there",
            prepare_refused(reason),
            degrees(milli)
        ),
        PageHistoryEvent::Prepared { requester, milli } => {
            format!(
                "agrees to give it to {requester}: hotness {here} here, {} there",
                degrees(milli)
            )
        }
        PageHistoryEvent::Aborted => "aborts the swap: the page stays where it is".into(),
        PageHistoryEvent::Arrived => "it came".into(),
        PageHistoryEvent::Departed => "it went".into(),
        PageHistoryEvent::Shared => "lets other racks keep read-only copies".into(),
        PageHistoryEvent::Unshared => "a write is requested: all copies are invalidated".into(),
        PageHistoryEvent::Copied => "has a read-only copy".into(),
        PageHistoryEvent::CopyGone => "has no copy any more".into(),
    };
    if note.times > 1 {
        let _ = write!(text, " ({} times, last {})", note.times, utc_millis(note.last_unix_ms));
    }
    text
}

const fn request_refused(reason: RequestRefusal) -> &'static str {
    match reason {
        RequestRefusal::AtHome => "it is already at home there",
        RequestRefusal::NoSuchPage => "the metadata server knows no such page",
        RequestRefusal::NotYours => "the offered page is no longer its own",
        RequestRefusal::QueueFull => "too many racks wait for pages",
    }
}

const fn prepare_refused(reason: PrepareRefusal) -> &'static str {
    match reason {
        PrepareRefusal::Hotter => "at least as hot at home",
        PrepareRefusal::ReadHot => "at least as hot at home, and mostly read by the requester",
        PrepareRefusal::Rests => "it moved recently and rests",
        PrepareRefusal::Unavailable => "in another swap, or it holds nothing that can move",
        PrepareRefusal::Full => "its home has too many swaps or no free frame",
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::PageId;
    use rackpool_wire::history::PageHeat;

    use super::*;

    #[test]
    fn what_happens_again_between_two_moves_is_told_once() {
        let note =
            |unix_ms, event| PageNote { unix_ms, last_unix_ms: unix_ms, times: 1, milli: 0, event };
        let asks = PageHistoryEvent::Requested { offered: PageId(7) };
        let refused = PageHistoryEvent::PrepareRefused(PrepareRefusal::Hotter);
        let notes = [asks, refused, asks, refused, asks, PageHistoryEvent::Arrived, asks];
        let notes = (1..).zip(notes).map(|(at, event)| note(at, event)).collect();
        let heat = PageHeat {
            page: PageId(1),
            milli: 0,
            reads: 0,
            writes: 0,
            hot: false,
            read_hot: false,
            at_home: true,
        };
        let history = PageHistory { heat, hot_milli: 1, rests: false, notes };
        let told = super::history(&[(RackId(1), history)]);
        let told: Vec<_> =
            told.iter().map(|(_, note)| (note.event, note.times, note.last_unix_ms)).collect();
        assert_eq!(
            told,
            [(asks, 3, 5), (refused, 2, 4), (PageHistoryEvent::Arrived, 1, 6), (asks, 1, 7)]
        );
    }

    #[test]
    fn both_sides_of_a_refusal_are_told_with_their_hotness() {
        let event = PageHistoryEvent::Refused {
            requester: RackId(1),
            milli: 5_200,
            reason: PrepareRefusal::Hotter,
        };
        let note = PageNote { unix_ms: 1_000, last_unix_ms: 61_005, times: 3, milli: 9_700, event };
        assert_eq!(
            line(&note),
            "keeps it from rack 1: at least as hot at home; hotness 9.7 here, 5.2 there \
             (3 times, last 1970-01-01 00:01:01.005)"
        );
    }
}
