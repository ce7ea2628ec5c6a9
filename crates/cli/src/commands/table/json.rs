//! The output of `rackpool table stat --json`: docs/design/seeing.md.

use rackpool_model::GlobalAddr;
use serde_json::{Value, json};

use super::measured::Measured;
use crate::commands::roots::Content;

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
