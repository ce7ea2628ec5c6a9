//! The output of `rackpool explain --json`: docs/design/seeing.md.

use rackpool_model::RackId;
use rackpool_wire::history::PageHistory;
use rackpool_wire::metadata::{DirectoryEntry, PoolStatus};
use serde_json::{Value, json};

use super::history::{history, is_allocated, line};
use crate::commands::json::{degrees, hex, iso};

/// `rackpool explain --json`.
pub(super) fn explain(
    pool: &PoolStatus,
    entry: &DirectoryEntry,
    racks: &[(RackId, PageHistory)],
    silent: &[(RackId, String)],
) -> Value {
    let moved =
        entry.moved.map(|last| json!({"swap": hex(last.swap.0), "epoch": last.epoch.raw()}));
    let swap = entry.locked.map(|lock| {
        json!({
            "swap": hex(lock.swap.0),
            "requester": lock.requester.0,
            "wanted": lock.wanted.0,
            "offered": lock.offered.0,
            "committing": lock.committing,
        })
    });
    let state = match (entry.home, is_allocated(entry, racks)) {
        (None, _) => "lost",
        (Some(_), None) => "unknown",
        (Some(_), Some(true)) => "allocated",
        (Some(_), Some(false)) => "free",
    };
    let asked = racks.iter().map(|(rack, of)| hotness(*rack, of));
    let not_asked = silent.iter().map(|(rack, why)| json!({"rack": rack.0, "reason": why}));
    let notes = history(racks);
    let notes = notes.iter().map(|(rack, note)| {
        json!({
            "rack": rack.0,
            "time": iso(note.unix_ms),
            "last_time": iso(note.last_unix_ms),
            "times": note.times,
            "hotness": degrees(note.milli),
            "text": line(note),
        })
    });
    json!({
        "page": entry.page.0,
        "page_bytes": pool.page_bytes,
        "state": state,
        "born": entry.born.0,
        "home": entry.home.map(|rack| rack.0),
        "moved": moved,
        "swap_under_way": swap,
        "wanted_by": entry.waiting.iter().map(|rack| rack.0).collect::<Vec<_>>(),
        "racks": asked.chain(not_asked).collect::<Vec<_>>(),
        "history": notes.collect::<Vec<_>>(),
    })
}

fn hotness(rack: RackId, of: &PageHistory) -> Value {
    let heat = &of.heat;
    json!({
        "rack": rack.0,
        "hotness": degrees(heat.milli),
        "hot_above": degrees(of.hot_milli),
        "hot": heat.hot,
        "read_hot": heat.read_hot,
        "reads": heat.reads,
        "writes": heat.writes,
        "at_home": heat.at_home,
        "rests": of.rests,
    })
}
