//! `rackpool explain`: a page's home, its former homes, and why it moved or stayed.

use std::fmt::Write as _;
use std::str::FromStr;

use anyhow::{Context, bail};
use rackpool_model::{GlobalAddr, PageId, PageSize, RackId};
use rackpool_output::{UsageError, chain, outln, print};
use rackpool_wire::history::{PageHistory, PageHistoryEvent, PageNote};
use rackpool_wire::metadata::{DirectoryEntry, PoolStatus};
use rackpool_wire::swap::{PrepareRefusal, RequestRefusal};

use crate::report::utc_millis;

use super::json;
use super::racks::{MemberReach, WhichPool, own_addresses, page_history, reach};

/// Which page.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A page's number, or an address like 0x640040 whose page is meant.
    #[arg(value_name = "PAGE|ADDRESS")]
    pub what: What,
    #[command(flatten)]
    which: WhichPool,
    /// Print JSON, as docs/design/seeing.md describes it.
    #[arg(long)]
    pub json: bool,
}

/// A page, or an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The page itself.
    Page(PageId),
    /// Somewhere in it.
    Address(GlobalAddr),
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "give a page's number like 42, or an address like 0x640040";
        match text.strip_prefix("0x") {
            Some(digits) => {
                let raw = u64::from_str_radix(digits, 16).map_err(|_| help)?;
                Ok(Self::Address(GlobalAddr::from_raw(raw)))
            }
            None => text.parse().map(PageId).map(Self::Page).map_err(|_| help.into()),
        }
    }
}

/// Prints a page's history.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let pool = server.status()?;
    let page = match options.what {
        What::Page(page) => page,
        What::Address(addr) => {
            let size = PageSize::from_bytes(pool.page_bytes).context("the pool has no racks")?;
            addr.page(size).ok_or_else(|| UsageError::new(format!("{addr} is no address")))?
        }
    };
    let Some(entry) = server.explain(page)? else { bail!("the pool has no {page}") };
    let mut racks = Vec::new();
    let mut silent = Vec::new();
    let own = own_addresses();
    for member in &pool.members {
        match reach(&pool, member, &own) {
            MemberReach::Here => match page_history(&member.control_path, page) {
                Ok(history) => racks.push((member.rack, history)),
                Err(error) => silent.push((member.rack, chain(error.as_ref()))),
            },
            MemberReach::Elsewhere => {
                silent.push((member.rack, "on another host: ask there".into()))
            }
            MemberReach::Down => silent.push((member.rack, "its lease has run out".into())),
            MemberReach::Left => silent.push((member.rack, "it has left".into())),
        }
    }
    if options.json {
        let shape = json::explain(&pool, &entry, &racks, &silent);
        outln!("{shape:#}")?;
        return Ok(());
    }
    print(format_args!("{}", tell(&pool, &entry, &racks)))?;
    for (rack, why) in silent {
        outln!("  {rack:<8} not asked: {why}")?;
    }
    Ok(())
}

fn tell(pool: &PoolStatus, entry: &DirectoryEntry, racks: &[(RackId, PageHistory)]) -> String {
    let mut text = format!("{} of {} B\n", entry.page, pool.page_bytes);
    let _ = writeln!(text, "  born in   {}", entry.born);
    let is_free = is_allocated(entry, racks) == Some(false);
    let lives = match (entry.home, entry.moved) {
        (Some(home), _) if is_free => {
            format!("nowhere: nothing is allocated in it; its frame in {home} is free")
        }
        (Some(home), None) => format!("{home}, it never moved"),
        (Some(home), Some(last)) => {
            format!("{home}, where swap {:x} brought it (epoch {})", last.swap.0, last.epoch.raw())
        }
        (None, _) => "nowhere: it is lost with its rack's memory".into(),
    };
    let _ = writeln!(text, "  lives in  {lives}");
    if let Some(lock) = entry.locked {
        let state = if lock.committing { "about to be committed" } else { "under way" };
        let _ = writeln!(
            text,
            "  now       {} gives {} for {}: swap {:x} is {state}",
            lock.requester, lock.offered, lock.wanted, lock.swap.0
        );
    }
    if !entry.waiting.is_empty() {
        let waiting: Vec<String> = entry.waiting.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  wanted by {}", waiting.join(", "));
    }
    text.push_str("\nhotness now\n");
    for (rack, history) in racks {
        let _ = writeln!(text, "  {:<8} {}", rack.to_string(), heat(history));
    }
    let notes = history(racks);
    text.push_str("\nhistory, as far as the daemons remember (UTC)\n");
    if notes.is_empty() {
        text.push_str("  nobody has wanted it from afar, and it has not moved\n");
    }
    for (rack, note) in notes {
        let (time, rack) = (utc_millis(note.unix_ms), rack.to_string());
        let _ = writeln!(text, "  {time}  {rack:<8} {}", line(&note));
    }
    text
}

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

fn heat(history: &PageHistory) -> String {
    let heat = &history.heat;
    let mut text = format!("{:>8}", degrees(heat.milli));
    let hot = match (heat.hot, heat.read_hot) {
        (_, true) => "read-hot",
        (true, false) => "hot",
        (false, _) => "cold",
    };
    let _ = write!(
        text,
        "  {hot} (hot above {}), {} reads, {} writes",
        degrees(history.hot_milli),
        heat.reads,
        heat.writes
    );
    if heat.at_home {
        text.push_str("; its home");
    }
    if history.rests {
        text.push_str("; it rests");
    }
    text
}

fn degrees(milli: u64) -> String {
    format!("{:.1}", json::degrees(milli))
}

pub(super) fn line(note: &PageNote) -> String {
    let here = degrees(note.milli);
    let mut text = match note.event {
        PageHistoryEvent::Requested { offered } => {
            format!("asks for it and offers {offered}: hotness {here} here")
        }
        PageHistoryEvent::NoColdPage => {
            format!("wants it but has nothing cold to give: hotness {here} here")
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
        PageHistoryEvent::Aborted => "gives the swap up: the page stays where it is".into(),
        PageHistoryEvent::Arrived => "it came".into(),
        PageHistoryEvent::Departed => "it went".into(),
        PageHistoryEvent::Shared => "lets other racks keep copies of it".into(),
        PageHistoryEvent::Unshared => {
            "somebody wants to write it: nobody has a copy any more".into()
        }
        PageHistoryEvent::Copied => "keeps a copy of it, to be read here".into(),
        PageHistoryEvent::CopyGone => "keeps no copy of it any more".into(),
    };
    if note.times > 1 {
        let _ = write!(text, " ({} times, last {})", note.times, utc_millis(note.last_unix_ms));
    }
    text
}

const fn request_refused(reason: RequestRefusal) -> &'static str {
    match reason {
        RequestRefusal::AtHome => "it is at home there already",
        RequestRefusal::NoSuchPage => "the metadata server knows no such page",
        RequestRefusal::NotYours => "what was offered is not its own any more",
        RequestRefusal::QueueFull => "too many racks wait for pages",
    }
}

const fn prepare_refused(reason: PrepareRefusal) -> &'static str {
    match reason {
        PrepareRefusal::Hotter => "at least as hot at home",
        PrepareRefusal::ReadHot => "at least as hot at home, and mostly read by the requester",
        PrepareRefusal::Rests => "it came lately and rests",
        PrepareRefusal::Unavailable => "in another swap, or it holds nothing that can move",
        PrepareRefusal::Full => "its home has too many swaps or no free frame",
    }
}

#[cfg(test)]
mod tests {
    use rackpool_wire::history::PageHeat;

    use super::*;

    #[test]
    fn pages_are_numbers_and_addresses_are_hexadecimal() {
        assert_eq!("42".parse(), Ok(What::Page(PageId(42))));
        assert_eq!("0x640040".parse(), Ok(What::Address(GlobalAddr::from_raw(0x64_0040))));
        for wrong in ["", "0x", "page", "-1", "4294967296", "0x1ffffffffffffffff"] {
            assert!(wrong.parse::<What>().unwrap_err().contains("0x640040"), "{wrong}");
        }
    }

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
