//! `rackpool objects explain`: where an object lies, which programs pin it, and why it may be
//! absent.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_admin::{MemberReach, own_addresses, reach};
use rackpool_client::GlobalAddr;
use rackpool_kv::now_ms;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{EvictionPolicy, ExplainedObject, Explanation};
use rackpool_output::clock::utc_millis;
use rackpool_output::numbers::{counted, grouped};
use rackpool_output::{chain, outln};
use rackpool_wire::metadata::PoolStatus;
use serde_json::{Value, json};

use super::text::{age, in_one_unit};
use super::{Id, WhichStore, json as objects_json};
use crate::commands::audit::census::RackFiles;
use crate::commands::json::iso;

/// The programs that pin a head, or why they are not known.
type Pins = Result<BTreeSet<u64>, String>;

/// Prints what is known of an id.
pub(super) fn run(id: &Id, which: &WhichStore, json: bool) -> anyhow::Result<()> {
    let known = which.open()?.explain(&id.0.0)?;
    let pins = pins_of(&which.which.server()?.status()?, &heads_of(&known));
    if json {
        outln!("{:#}", as_json(id, &known, &pins))?;
        return Ok(());
    }
    for line in lines(id, &known, &pins, now_ms()) {
        outln!("{line}")?;
    }
    Ok(())
}

/// The heads of an object and of its replicas, with their racks.
fn heads_of(known: &Explanation) -> Vec<(RackId, GlobalAddr)> {
    let object = known.object.iter().map(|object| (object.stat.info.rack, object.stat.addr));
    object.chain(known.replicas.iter().map(|replica| (replica.rack, replica.addr))).collect()
}

/// Looks up the programs that pin these heads, in the client files of the racks of this host.
fn pins_of(pool: &PoolStatus, heads: &[(RackId, GlobalAddr)]) -> BTreeMap<GlobalAddr, Pins> {
    let own = own_addresses();
    let find = |rack: RackId, addr: GlobalAddr| -> Pins {
        let member = pool.members.iter().find(|member| member.rack == rack);
        let member = member.filter(|member| reach(pool, member, &own) == MemberReach::Here);
        let member = member.ok_or("not known here: ask on the host of the rack")?;
        let files = RackFiles::open(rack, &member.control_path);
        let found = files.and_then(|files| files.pins_of(&BTreeSet::from([addr])));
        let mut found = found.map_err(|error| chain(error.as_ref()))?;
        Ok(found.remove(&addr).unwrap_or_default())
    };
    heads.iter().map(|(rack, addr)| (*addr, find(*rack, *addr))).collect()
}

fn lines(
    id: &Id,
    known: &Explanation,
    pins: &BTreeMap<GlobalAddr, Pins>,
    now_ms: u64,
) -> Vec<String> {
    let pinned_by = |addr: &GlobalAddr| pins.get(addr).map_or_else(|| "not known".into(), pids);
    let mut lines = match &known.object {
        Some(object) => object_lines(id, object, &pinned_by(&object.stat.addr), now_ms),
        None if known.unread.is_empty() => absence(id, known),
        None => vec![format!("object       '{id}' is not known to be in the store")],
    };
    lines.extend(known.unread.iter().map(|why| format!("not read     {why}")));
    let registration = match &known.registration {
        None if !known.unread.is_empty() => "not known".into(),
        None => "none: no rack has asked for a replica".into(),
        Some(now) if !now.is_current => {
            "of an object that is deleted: the next `ls` removes it".into()
        }
        Some(now) if now.is_open => format!("open: {}", counted_racks(&now.racks)),
        Some(now) => format!(
            "closed by a delete that is under way, or that failed or was killed; gets in other racks \
             bring private copies until the delete is repeated: {}",
            counted_racks(&now.racks)
        ),
    };
    lines.push(format!("registration {registration}"));
    for replica in &known.replicas {
        let filled = format!("{} there, not ready", ByteSize(replica.filled_bytes));
        let state = if replica.is_ready { "ready" } else { &filled };
        lines.push(format!(
            "replica      at {} in {}, {state}, last use {} ago, pinned by {}",
            replica.addr,
            replica.rack,
            age(replica.last_use_ms, now_ms),
            pinned_by(&replica.addr)
        ));
    }
    if known.replicas.is_empty() {
        lines.push("replica      none".into());
    }
    for (rack, why) in &known.unknown {
        lines.push(format!("replica      not known in {rack}: {why}"));
    }
    lines
}

fn counted_racks(racks: &[RackId]) -> String {
    let racks: Vec<String> = racks.iter().map(ToString::to_string).collect();
    if racks.is_empty() { "no rack may have a replica".into() } else { racks.join(", ") }
}

fn pids(pins: &Pins) -> String {
    match pins {
        Ok(pids) if pids.is_empty() => "nobody".into(),
        Ok(pids) => {
            let pids: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
            pids.join(", ")
        }
        Err(why) => why.clone(),
    }
}

fn object_lines(id: &Id, object: &ExplainedObject, pinned: &str, now_ms: u64) -> Vec<String> {
    let ExplainedObject { stat, extents, memory_bytes, expires_ms, unread } = object;
    let info = &stat.info;
    let mut lines = vec![
        format!("object       '{id}' at {} in {}", stat.addr, info.rack),
        format!(
            "bytes        {} ({}), {} of metadata, {} of memory",
            ByteSize(info.bytes),
            grouped(info.bytes),
            ByteSize(info.metadata_bytes),
            ByteSize(*memory_bytes)
        ),
        format!("layout tag   {:#x}", info.layout_tag),
        format!(
            "sealed       {} UTC, {} ago",
            utc_millis(info.created_ms),
            age(info.created_ms, now_ms)
        ),
    ];
    if let Some(why) = unread {
        lines.push(format!("not read     last use and extents: {why}"));
    } else if !stat.info.is_spilled {
        lines.push(format!(
            "last use     {} UTC, {} ago, to a second",
            utc_millis(stat.last_use_ms),
            age(stat.last_use_ms, now_ms)
        ));
    }
    match expires_ms {
        None => lines.push("expires      never".into()),
        Some(at) if *at < now_ms => lines.push(format!(
            "expires      expired {} ago, so it counts as absent; its memory goes when a program of \
             its rack creates or lists objects",
            age(*at, now_ms)
        )),
        Some(at) => lines.push(format!("expires      in {}", in_one_unit(at.saturating_sub(now_ms)))),
    }
    lines.push(format!("pinned by    {pinned}"));
    match extents.as_slice() {
        [] if stat.info.is_spilled => lines.push(format!(
            "extents      none: the bytes are in a file of {}, and the next get brings them back",
            stat.info.rack
        )),
        [] if unread.is_none() => lines.push("extents      none: the bytes are in the head".into()),
        extents => {
            for extent in extents {
                lines.push(format!("extent       {} at {}", ByteSize(extent.bytes), extent.addr));
            }
        }
    }
    lines
}

/// Why there may be no object. The store keeps no history of what was deleted.
fn absence(id: &Id, known: &Explanation) -> Vec<String> {
    let mut why = vec!["it was never sealed, or was deleted".to_owned()];
    if let Some(live) = known.options.time_to_live {
        let live = in_one_unit(u64::try_from(live.as_millis()).unwrap_or(u64::MAX));
        why.push(format!("it had expired (the store's objects end after {live})"));
    }
    if known.options.policy == EvictionPolicy::Lru {
        let room = match known.options.capacity {
            Some(bytes) => format!("to keep to {} a rack", ByteSize(bytes)),
            None => "when its rack was full".into(),
        };
        why.push(format!("it was evicted {room}, unused for longest"));
    }
    let mut lines =
        vec![format!("object       '{id}' is not in the store: the store keeps no history")];
    lines.extend(why.iter().map(|why| format!("perhaps      {why}")));
    let left = known.replicas.len() as u64;
    if left > 0 {
        let left = counted(left, "replica", "replicas");
        lines.push(format!(
            "left over    {left} of a deleted object, which no get uses and the next `ls` of its rack \
             removes"
        ));
    }
    lines
}

/// The output of `--json`: docs/design/seeing.md.
fn as_json(id: &Id, known: &Explanation, pins: &BTreeMap<GlobalAddr, Pins>) -> Value {
    let pids = |addr: &GlobalAddr| pins.get(addr).and_then(|pins| pins.as_ref().ok());
    let object = known.object.as_ref().map(|object| {
        let mut value = objects_json::stat(&object.stat);
        let extent = |extent: &rackpool_client::Extent| {
            json!({"address": extent.addr.to_string(), "bytes": extent.bytes})
        };
        value["memory_bytes"] = object.memory_bytes.into();
        value["extents"] = object.extents.iter().map(extent).collect();
        value["expires"] = object.expires_ms.map(iso).into();
        value["expired"] = object.has_expired().into();
        value["unread"] = object.unread.clone().into();
        value["pinned_by"] = json!(pids(&object.stat.addr));
        value
    });
    let replica = |replica: &rackpool_objects::ExplainedReplica| {
        json!({
            "rack": replica.rack.0,
            "address": replica.addr.to_string(),
            "ready": replica.is_ready,
            "filled_bytes": replica.filled_bytes,
            "last_use": iso(replica.last_use_ms),
            "pinned_by": pids(&replica.addr),
        })
    };
    let registration = known.registration.as_ref().map(|now| {
        json!({
            "open": now.is_open,
            "current": now.is_current,
            "racks": now.racks.iter().map(|rack| rack.0).collect::<Vec<_>>(),
        })
    });
    let unknown = known.unknown.iter().map(|(rack, why)| json!({"rack": rack.0, "reason": why}));
    json!({
        "id": id.to_string(),
        "object": object,
        "registration": registration,
        "unread": known.unread,
        "replicas": known.replicas.iter().map(replica).collect::<Vec<_>>(),
        "not_looked_at": unknown.collect::<Vec<_>>(),
    })
}
