//! The output of `rackpool audit --json`: docs/design/seeing.md.

use serde_json::{Value, json};

use super::account::{Audit, RootShare, Share};

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
