//! The report of an audit, as text.

use rackpool_model::ByteSize;
use rackpool_output::outln;

use super::super::roots::{Content, printable};
use super::account::{Audit, Share};

/// Why unreached objects are not classified.
const UNKNOWN: &str = "What no root leads to is either a running program's own or was left by a program that \
                       ended: the pool can't tell which.";

pub(super) fn print(audit: &Audit, list: bool) -> anyhow::Result<()> {
    let racks: Vec<String> = audit.racks.iter().map(|rack| rack.0.to_string()).collect();
    outln!("objects in use in the racks of this host: {}", racks.join(", "))?;
    for (rack, why) in &audit.missing {
        outln!("{rack} is not looked at: {why}")?;
    }
    outln!()?;
    outln!("{:>12} {:>10}  WHAT", "BYTES", "OBJECTS")?;
    row(audit.total, "all")?;
    for root in &audit.roots {
        let what = match &root.content {
            Ok(Content::Table) => "a table".to_owned(),
            Ok(Content::Volume) => "a volume of files".to_owned(),
            Ok(Content::Store) => "a store of objects".to_owned(),
            Ok(Content::Other) => "a program's own; only the object itself is counted".to_owned(),
            Err(why) => format!("unknown: {why}"),
        };
        let unread = match root.unread {
            0 => String::new(),
            unread => {
                format!("; {unread} parts can't be read, and what they lead to is not counted")
            }
        };
        row(root.share, &format!("root '{}': {what}{unread}", printable(&root.name)))?;
    }
    row(
        audit.held,
        &format!(
            "in caches and reservations of {} clients, or on their way between racks",
            audit.clients
        ),
    )?;
    row(audit.changing, "allocated or freed while this looked")?;
    row(audit.unreached, "no root leads to them")?;
    if audit.unreached.objects == 0 {
        return Ok(());
    }
    outln!()?;
    outln!("{UNKNOWN}")?;
    for (size, share) in &audit.sizes {
        row(*share, &format!("objects of {size} B"))?;
    }
    if list {
        outln!()?;
        for (addr, bytes) in &audit.list {
            outln!("{addr} {bytes}")?;
        }
    }
    Ok(())
}

fn row(share: Share, what: &str) -> anyhow::Result<()> {
    Ok(outln!("{:>12} {:>10}  {what}", ByteSize(share.bytes).to_string(), share.objects)?)
}
