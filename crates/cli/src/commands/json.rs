//! The output of the commands with `--json`: docs/design/seeing.md.

use rackpool_model::{GlobalAddr, RackId};
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHistory;
use rackpool_wire::metadata::{DirectoryEntry, PoolStatus};
use serde_json::{Value, json};

use super::audit::{Audit, RootShare, Share};
use super::explain::{history, is_allocated, line};
use super::racks::RackLook;
use super::roots::{Content, Root, RootPage};
use super::table::Measured;
use crate::report::utc_millis;

/// `rackpool status --json`.
pub(super) fn status(address: &str, pool: &PoolStatus, racks: &[RackLook]) -> Value {
    let roots =
        pool.roots.iter().map(|(name, addr)| json!({"name": name, "address": addr.to_string()}));
    json!({
        "metadata_server": {"address": address, "store_bytes": pool.store_bytes},
        "page_bytes": pool.page_bytes,
        "lease_ms": pool.lease_ms,
        "lost_pages": pool.lost_pages,
        "roots": roots.collect::<Vec<_>>(),
        "racks": racks.iter().map(rack).collect::<Vec<_>>(),
    })
}

/// `rackpool root ls --json`.
pub(super) fn roots(roots: &[Root]) -> Value {
    let root = |root: &Root| {
        let home = match root.page {
            RootPage::Home(rack) => Some(rack.0),
            RootPage::Lost | RootPage::None => None,
        };
        json!({
            "name": root.name,
            "address": root.addr.to_string(),
            "state": root.page.state(),
            "home": home,
            "content": root.content.as_ref().ok().map(|content| content.name()),
            "reason": root.content.as_ref().err(),
        })
    };
    json!({"roots": roots.iter().map(root).collect::<Vec<_>>()})
}

/// `rackpool table stat --json`.
pub(super) fn table(name: &str, addr: GlobalAddr, content: Content, found: &Measured) -> Value {
    let pages = found.pages.iter().map(|(rack, pages)| json!({"rack": rack.0, "pages": pages}));
    json!({
        "name": name,
        "address": addr.to_string(),
        "content": content.name(),
        "complete": found.walk.is_complete,
        "entries": found.entries,
        "bytes": found.bytes,
        "objects": found.objects,
        "segments": {
            "with_entries": found.segments,
            "spare": found.spare_segments,
            "taken": found.walk.taken_segments,
        },
        "load_factor": found.load_factor(),
        "racks": pages.collect::<Vec<_>>(),
        "lost_pages": found.lost_pages,
        "unread": found.walk.unread,
    })
}

/// `rackpool audit --json`.
pub(super) fn audit(audit: &Audit, list: bool) -> Value {
    let share = |share: Share| json!({"objects": share.objects, "bytes": share.bytes});
    let root = |root: &RootShare| {
        json!({
            "name": root.name,
            "content": root.content.as_ref().ok().map(|content| content.name()),
            "reason": root.content.as_ref().err(),
            "objects": root.share.objects,
            "bytes": root.share.bytes,
            "unread": root.unread,
        })
    };
    let sizes = audit.sizes.iter().map(|(size, share)| {
        json!({"object_bytes": size, "objects": share.objects, "bytes": share.bytes})
    });
    let missing = audit.missing.iter().map(|(rack, why)| json!({"rack": rack.0, "reason": why}));
    let listed =
        audit.list.iter().map(|(addr, bytes)| json!({"address": addr.to_string(), "bytes": bytes}));
    json!({
        "racks": audit.racks.iter().map(|rack| rack.0).collect::<Vec<_>>(),
        "not_looked_at": missing.collect::<Vec<_>>(),
        "in_use": share(audit.total),
        "roots": audit.roots.iter().map(root).collect::<Vec<_>>(),
        "clients": audit.clients,
        "held_by_clients": share(audit.held),
        "changing": share(audit.changing),
        "unreached": share(audit.unreached),
        "unreached_by_size": sizes.collect::<Vec<_>>(),
        "unreached_objects": list.then(|| listed.collect::<Vec<_>>()),
    })
}

fn rack(look: &RackLook) -> Value {
    let member = &look.member;
    json!({
        "rack": member.rack.0,
        "state": look.state.name(),
        "reason": look.status.as_ref().err(),
        "first_page": member.pages.first.0,
        "pages": member.pages.count,
        "free_frames": member.free_frames,
        "fabric_address": member.fabric_address,
        "control_path": member.control_path,
        "metrics": look.status.as_ref().ok().map(metrics),
    })
}

/// A daemon's own metrics; `null` if it was not asked.
fn metrics(status: &RackStatus) -> Value {
    let (swaps, sharing) = (&status.swaps, &status.sharing);
    let refused = swaps.refused.iter().map(|(why, count)| (why.clone(), json!(count)));
    json!({
        "pid": status.pid,
        "frames": status.frames,
        "free_frames": status.free_frames,
        "allocated_bytes": status.allocated_bytes,
        "clients": status.clients,
        "metadata_bytes_per_frame": status.metadata_bytes_per_frame,
        "requests": status.requests,
        "local_accesses": status.local_accesses,
        "remote_operations": status.remote_operations,
        "sleeps": status.sleeps,
        "rack_requests": {
            "pure": status.pure_requests,
            "then_one_sided": status.then_one_sided_requests,
            "zero_copy": status.zero_copy_requests,
        },
        "posted_operations": status.posted,
        "sent_messages": status.messages,
        "doorbells": status.doorbells,
        "swaps": {
            "asked": swaps.asked,
            "served": swaps.served,
            "arrived": swaps.arrived,
            "departed": swaps.departed,
            "given_up": swaps.given_up,
            "forwarded_writes": swaps.forwarded,
            "copied_bytes": swaps.copied_bytes,
            "refused": refused.collect::<serde_json::Map<_, _>>(),
        },
        "sharing": {
            "shared": sharing.shared,
            "begun": sharing.begun,
            "ended": sharing.ended,
            "copies": sharing.copies,
            "made": sharing.made,
            "reads": sharing.reads,
        },
        "fabric": status.fabric,
        "memory": status.memory,
        "placement": status.placement,
    })
}

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

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
pub(super) fn degrees(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

fn hex(number: u64) -> String {
    format!("{number:x}")
}

/// `2026-11-27T22:03:04.120Z`
pub(super) fn iso(unix_ms: u64) -> String {
    utc_millis(unix_ms).replace(' ', "T") + "Z"
}
