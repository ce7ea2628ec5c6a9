//! `rackpool status`: a pool's racks and their metrics.

mod json;

use rackpool_admin::{RackHealth, RackLook, look_at_racks};
use rackpool_model::{ByteSize, RackId};
use rackpool_output::{OutputError, outln};
use rackpool_wire::control::{BytesInFlight, InFlightStatus, RackStatus};

use super::roots::{printable, stores_of};
use crate::pool_arguments::WhichPool;

/// Which pool is shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The pool.
    #[command(flatten)]
    pub(crate) which: WhichPool,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the state of the pool.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let (pool, address) = (server.status()?, server.address());
    let racks = look_at_racks(&pool, 0);
    let stores = stores_of(&pool);
    if options.json {
        outln!("{:#}", json::status(address, &pool, &racks, stores.as_deref()))?;
        return Ok(());
    }
    outln!("metadata server  {address}, store of {}", ByteSize(pool.store_bytes))?;
    outln!("pages of         {}", ByteSize(pool.page_bytes))?;
    outln!("lease            {} ms", pool.lease_ms)?;
    if pool.lost_pages > 0 {
        outln!("lost pages       {}", pool.lost_pages)?;
    }
    for (name, addr) in &pool.roots {
        outln!("root             {name} = {addr}")?;
    }
    if let Some(stores) = stores.filter(|stores| !stores.is_empty()) {
        outln!("{}", object_stores(&stores))?;
    }
    outln!()?;
    outln!(
        "{:<6} {:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
        "rack",
        "state",
        "pid",
        "frames",
        "free",
        "in use",
        "clients",
        "requests",
        "remote ops"
    )?;
    for rack in &racks {
        outln!("{}", row(rack))?;
    }
    outln!("what the bytes in use are, says `rackpool audit`")?;
    outln!()?;
    for rack in &racks {
        if let Ok(status) = &rack.status {
            print_details(rack.member.rack.0, status)?;
        }
    }
    Ok(())
}

/// A rack's row of the table.
fn row(rack: &RackLook) -> String {
    let (number, state) = (rack.member.rack.0, rack.state.name());
    match &rack.status {
        Ok(status) => format!(
            "{number:<6} {state:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
            status.pid,
            status.frames,
            status.free_frames,
            ByteSize(status.allocated_bytes).to_string(),
            status.clients,
            status.requests,
            status.remote_operations
        ),
        Err(why) if rack.state == RackHealth::Up => {
            let (frames, free) = (rack.member.pages.count, rack.member.free_frames);
            format!("{number:<6} {state:<6} {:>8} {frames:>8} {free:>8} {why}", "-")
        }
        Err(why) => format!("{number:<6} {state:<6} {why}"),
    }
}

/// Prints the metrics that have no column in the table.
fn print_details(rack: u16, status: &RackStatus) -> Result<(), OutputError> {
    outln!(
        "rack {rack}: {}; {} B of metadata a frame; slept {} times",
        status.fabric,
        status.metadata_bytes_per_frame,
        status.sleeps
    )?;
    if let Some(beside) = beside(&status.siblings) {
        outln!("rack {rack}: {beside}")?;
    }
    outln!("rack {rack}: {}", requests(status))?;
    outln!("rack {rack}: {}", in_flight(&status.in_flight))?;
    outln!("rack {rack}: {}", swaps(status))?;
    outln!("rack {rack}: {}", sharing(status))?;
    if let Some(fixed) = fixed(status) {
        outln!("rack {rack}: {fixed}")?;
    }
    if let Some(device) = device(status) {
        outln!("rack {rack}: {device}")?;
    }
    for (other, thresholds) in &status.thresholds {
        outln!("rack {rack}: to rack {}: {thresholds}", other.0)?;
    }
    outln!("rack {rack}: memory of kind {}", status.memory)?;
    outln!("rack {rack}: {}", status.placement)
}

/// Says with which numbers this one is a rack, if the rack has several daemons.
fn beside(siblings: &[RackId]) -> Option<String> {
    let numbers: Vec<String> = siblings.iter().map(|sibling| sibling.0.to_string()).collect();
    (!numbers.is_empty()).then(|| {
        format!("one rack with {}: their memory is local to its programs", numbers.join(", "))
    })
}

/// The ratio of `count` to `of`.
#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn each(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// The names of the first object stores, and how many there are.
fn object_stores(stores: &[String]) -> String {
    const NAMED: usize = 8;
    let names: Vec<String> =
        stores.iter().take(NAMED).map(|name| format!("'{}'", printable(name))).collect();
    let more = if stores.len() > NAMED { ", ..." } else { "" };
    format!("object stores    {}: {}{more}", stores.len(), names.join(", "))
}

/// Describes fixed memory, which is that of object stores, if there is any.
fn fixed(status: &RackStatus) -> Option<String> {
    let fixed = &status.fixed;
    (fixed.objects > 0).then(|| {
        format!(
            "fixed memory: {} in {} objects and {} extents; of these {} in {} that were freed and are \
             still read",
            ByteSize(fixed.object_bytes + fixed.extent_bytes),
            fixed.objects,
            fixed.extents,
            ByteSize(fixed.retired_bytes),
            fixed.retired
        )
    })
}

/// Describes the work requests of the fabric's device, or the frames of its sockets.
fn device(status: &RackStatus) -> Option<String> {
    let requests = status.device_requests;
    let [what, doorbell, completion] = if status.fabric.starts_with("tcp:") {
        ["frames to the sockets", "a write", "an answer"]
    } else {
        ["work requests of the device", "a doorbell", "a completion"]
    };
    let inlined = match status.device_inlined {
        0 => String::new(),
        inlined => format!(", {inlined} with their bytes within them"),
    };
    (requests > 0).then(|| {
        format!(
            "{what}: {requests}, {:.1} {doorbell}, {:.1} {completion}{inlined}",
            each(requests, status.device_doorbells),
            each(requests, status.device_completions)
        )
    })
}

/// Describes the requests to other racks, and operations and messages for each doorbell.
fn requests(status: &RackStatus) -> String {
    format!(
        "requests to other racks: {} pure RPC, {} RPC then one-sided, {} zero-copy; \
         {} one-sided operations and {} messages, {:.1} a doorbell",
        status.pure_requests,
        status.then_one_sided_requests,
        status.zero_copy_requests,
        status.posted,
        status.messages,
        each(status.posted + status.messages, status.doorbells)
    )
}

/// Describes the bytes in flight to the rack, and their limits.
fn in_flight(bytes: &InFlightStatus) -> String {
    let part = |part: &BytesInFlight| {
        let BytesInFlight { limit, used, peak } = *part;
        format!("{} (peak {}) of {}", ByteSize(used), ByteSize(peak), ByteSize(limit))
    };
    format!(
        "in flight: requests {}, reads {}; writes that other racks may have {}",
        part(&bytes.requests),
        part(&bytes.reads),
        part(&bytes.peer_writes)
    )
}

/// Describes the swaps of hot pages.
fn swaps(status: &RackStatus) -> String {
    let swaps = &status.swaps;
    let refused = swaps.refused.iter().filter(|(_, count)| *count > 0);
    let refused: Vec<String> = refused.map(|(why, count)| format!("{count} {why}")).collect();
    let refused = if refused.is_empty() { "none".into() } else { refused.join(", ") };
    format!(
        "hot pages: {} came, {} went, {} swaps given up; refused: {refused}",
        swaps.arrived, swaps.departed, swaps.given_up
    )
}

/// Describes the shared copies of pages.
fn sharing(status: &RackStatus) -> String {
    let sharing = &status.sharing;
    format!(
        "shared pages: {} now, {} times begun, {} ended by writers; copies kept here: {} now, {} \
         made, read about {} times",
        sharing.shared, sharing.begun, sharing.ended, sharing.copies, sharing.made, sharing.reads
    )
}

#[cfg(test)]
mod tests {
    use rackpool_wire::control::FixedStatus;

    use super::*;

    #[test]
    fn counters_of_the_device_are_shown_for_each() {
        let status = RackStatus {
            device_requests: 100,
            device_doorbells: 40,
            device_completions: 8,
            ..RackStatus::default()
        };
        let text = device(&status).unwrap();
        assert_eq!(text, "work requests of the device: 100, 2.5 a doorbell, 12.5 a completion");
        assert_eq!(device(&RackStatus::default()), None);
        let inlined = RackStatus { device_inlined: 70, ..status.clone() };
        let text = device(&inlined).unwrap();
        assert!(text.ends_with("12.5 a completion, 70 with their bytes within them"), "{text}");
        let status = RackStatus { fabric: "tcp: 127.0.0.1:7".into(), ..status };
        let text = device(&status).unwrap();
        assert_eq!(text, "frames to the sockets: 100, 2.5 a write, 12.5 an answer");
    }

    #[test]
    fn stores_and_fixed_memory_are_shown_in_short() {
        let stores: Vec<String> = (0..10).map(|number| format!("s{number}")).collect();
        assert_eq!(object_stores(&stores[..2]), "object stores    2: 's0', 's1'");
        let all = object_stores(&stores);
        assert!(all.starts_with("object stores    10: ") && all.ends_with("'s7', ..."), "{all}");
        assert_eq!(fixed(&RackStatus::default()), None);
        assert_eq!(beside(&[]), None);
        let several = beside(&[RackId(1), RackId(2)]).unwrap();
        assert_eq!(several, "one rack with 1, 2: their memory is local to its programs");
        let memory = FixedStatus {
            objects: 3,
            object_bytes: 1 << 10,
            extents: 2,
            extent_bytes: 3 << 10,
            retired: 1,
            retired_bytes: 2 << 10,
        };
        let text = fixed(&RackStatus { fixed: memory, ..RackStatus::default() }).unwrap();
        assert!(text.starts_with("fixed memory: 4 KiB in 3 objects and 2 extents"), "{text}");
    }

    #[test]
    fn a_doorbell_counts_for_operations_and_messages() {
        let status =
            RackStatus { posted: 30, messages: 10, doorbells: 16, ..RackStatus::default() };
        let text = requests(&status);
        let end = "30 one-sided operations and 10 messages, 2.5 a doorbell";
        assert!(text.ends_with(end), "{text}");
    }
}
