//! The output of `rackpool objects ls --json` and `stat --json`: docs/design/seeing.md.

use rackpool_objects::{ObjectInfo, ObjectStat};
use serde_json::{Value, json};

use super::id::Bytes;
use crate::commands::json::{hex, iso};

/// `rackpool objects ls --json`.
pub(super) fn list(store: &str, objects: &[ObjectInfo]) -> Value {
    json!({"store": store, "objects": objects.iter().map(object).collect::<Vec<_>>()})
}

/// `rackpool objects stat --json`.
pub(super) fn stat(found: &ObjectStat) -> Value {
    let mut value = object(&found.info);
    value["address"] = found.addr.to_string().into();
    value["pieces"] = found.pieces.into();
    value["last_use"] = (found.last_use_ms > 0).then(|| iso(found.last_use_ms)).into();
    value["replicas"] = found.replicas.iter().map(|rack| rack.0).collect();
    value
}

/// What the store says of an object.
pub(super) fn object(info: &ObjectInfo) -> Value {
    json!({
        "id": Bytes(info.id.clone()).to_string(),
        "bytes": info.bytes,
        "metadata_bytes": info.metadata_bytes,
        "layout_tag": hex(info.layout_tag),
        "checksum": hex(info.checksum),
        "created": iso(info.created_ms),
        "rack": info.rack.0,
        "is_spilled": info.is_spilled,
    })
}
