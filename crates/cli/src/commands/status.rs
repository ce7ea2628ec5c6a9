//! `rackpool status`: a pool's racks and their figures.

use rackpool_model::ByteSize;
use rackpool_wire::control::RackStatus;

use super::racks::{Reach, WhichPool, own_addresses, reach};

pub use super::racks::rack_status;

/// Which pool is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The pool.
    #[command(flatten)]
    pub which: WhichPool,
}

/// Shows the pool.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let (pool, address) = (server.status()?, server.address());
    println!("metadata server  {address}, store of {}", ByteSize(pool.store_bytes));
    println!("pages of         {}", ByteSize(pool.page_bytes));
    println!("lease            {} ms", pool.lease_ms);
    if pool.lost_pages > 0 {
        println!("lost pages       {}", pool.lost_pages);
    }
    for (name, addr) in &pool.roots {
        println!("root             {name} = {addr}");
    }
    println!();
    println!(
        "{:<6} {:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
        "rack", "state", "pid", "frames", "free", "in use", "clients", "requests", "remote ops"
    );
    let own = own_addresses();
    let mut fabrics = Vec::new();
    for member in &pool.members {
        let is_here = reach(member, &own) == Reach::Here;
        let figures = is_here.then(|| rack_status(&member.control_path));
        match figures {
            Some(Ok(rack)) => {
                println!(
                    "{:<6} {:<6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>12} {:>12}",
                    member.rack.0,
                    "up",
                    rack.pid,
                    rack.frames,
                    rack.free_frames,
                    ByteSize(rack.allocated_bytes),
                    rack.clients,
                    rack.requests,
                    rack.remote_operations
                );
                fabrics.push((member.rack.0, rack));
            }
            Some(Err(error)) => println!("{:<6} {:<6} {error:#}", member.rack.0, "silent"),
            None if member.alive => println!(
                "{:<6} {:<6} {:>8} {:>8} {:>8} on another host, {}",
                member.rack.0,
                "up",
                "-",
                member.pages.count,
                member.free_frames,
                member.fabric_address
            ),
            None => println!("{:<6} {:<6} its lease has run out", member.rack.0, "down"),
        }
    }
    println!();
    for (rack, status) in fabrics {
        print_details(rack, &status);
    }
    Ok(())
}

/// What is no column of the table.
fn print_details(rack: u16, status: &RackStatus) {
    println!(
        "rack {rack}: {}; {} B of metadata a frame; slept {} times",
        status.fabric, status.metadata_bytes_per_frame, status.sleeps
    );
    println!("rack {rack}: {}", requests(status));
    println!("rack {rack}: {}", swaps(status));
    println!("rack {rack}: {}", sharing(status));
    if let Some(device) = device(status) {
        println!("rack {rack}: {device}");
    }
    for (other, thresholds) in &status.thresholds {
        println!("rack {rack}: to rack {}: {thresholds}", other.0);
    }
    println!("rack {rack}: memory of kind {}", status.memory);
    println!("rack {rack}: {}", status.placement);
}

/// How many there were for each.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn each(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// What the fabric asked of its device, or of its sockets, where it has such.
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

/// What a rack asked of others, and how many operations and messages went with one doorbell.
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

/// What became of hot pages.
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

/// Copies of pages that are mostly read.
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
    use super::*;

    #[test]
    fn figures_of_the_device_are_counts_for_each() {
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
    fn a_doorbell_counts_for_operations_and_messages() {
        let status =
            RackStatus { posted: 30, messages: 10, doorbells: 16, ..RackStatus::default() };
        let text = requests(&status);
        let end = "30 one-sided operations and 10 messages, 2.5 a doorbell";
        assert!(text.ends_with(end), "{text}");
    }
}
