//! The output of `rackpool status --json`: docs/design/seeing.md.

use rackpool_admin::RackLook;
use rackpool_wire::control::{BytesInFlight, RackStatus};
use rackpool_wire::metadata::PoolStatus;
use serde_json::{Value, json};

/// `rackpool status --json`.
pub(super) fn status(
    address: &str,
    pool: &PoolStatus,
    racks: &[RackLook],
    stores: Option<&[String]>,
) -> Value {
    let roots =
        pool.roots.iter().map(|(name, addr)| json!({"name": name, "address": addr.to_string()}));
    json!({
        "metadata_server": {"address": address, "store_bytes": pool.store_bytes},
        "page_bytes": pool.page_bytes,
        "lease_ms": pool.lease_ms,
        "lost_pages": pool.lost_pages,
        "roots": roots.collect::<Vec<_>>(),
        "object_stores": stores,
        "racks": racks.iter().map(rack).collect::<Vec<_>>(),
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
        "siblings": status.siblings.iter().map(|rack| rack.0).collect::<Vec<_>>(),
        "frames": status.frames,
        "frame_memory": {
            "bytes": status.frame_memory.bytes,
            "kernel_page_bytes": status.frame_memory.page_bytes,
            "sampled_pages": status.frame_memory.nodes.iter()
                .map(|(node, pages)| json!({"node": node, "pages": pages}))
                .collect::<Vec<_>>(),
        },
        "free_frames": status.free_frames,
        "allocated_bytes": status.allocated_bytes,
        "fixed": {
            "objects": status.fixed.objects,
            "object_bytes": status.fixed.object_bytes,
            "extents": status.fixed.extents,
            "extent_bytes": status.fixed.extent_bytes,
            "retired": status.fixed.retired,
            "retired_bytes": status.fixed.retired_bytes,
        },
        "in_flight": {
            "requests": in_flight(status.in_flight.requests),
            "reads": in_flight(status.in_flight.reads),
            "peer_writes": in_flight(status.in_flight.peer_writes),
        },
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

fn in_flight(bytes: BytesInFlight) -> Value {
    json!({"limit_bytes": bytes.limit, "used_bytes": bytes.used, "peak_bytes": bytes.peak})
}
