//! Two ways to transfer the blocks of a multicast, over the same fabric and with the same schedule:
//! a receiver reads, as casts do, or its sender writes, as in the RDMC paper.

mod member;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use rackpool_proto::multicast::schedule::{Schedule, Shape};

use crate::measure::median;
use crate::table::Table;
use member::{Member, Transport};

/// Slow, so that the links and not the two cores are the limit.
const GBPS: f64 = 2.0;
const BYTES: u64 = 128 << 20;
const BLOCK: u64 = 1 << 20;
const ROUNDS: usize = 3;
/// The sizes of a group, with its root.
const GROUPS: [u16; 2] = [4, 8];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let title = format!(
        "{} MiB in blocks of 1 MiB over links of {GBPS} Gbit/s, read by receivers against written by senders",
        BYTES >> 20
    );
    table.section(&title);
    let blocks = u32::try_from(BYTES / BLOCK)?;
    for group in GROUPS {
        let shape = Shape::new(Schedule::BinomialPipeline, group, blocks);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (times, transport) in times.iter_mut().zip([Transport::Pull, Transport::Push]) {
                times.push(multicast(&shape, transport)?);
            }
        }
        let [pull, push] = times.map(median);
        let detail = format!("{:.0} against {:.0} ms", pull * 1e3, push * 1e3);
        table.at_most(&format!("pipeline, a group of {group}"), pull / push, 1.05, "x", &detail);
    }
    Ok(())
}

/// The time in which all members have all blocks, in seconds.
fn multicast(shape: &Shape, transport: Transport) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let members = (0..shape.members())
        .map(|rank| Member::new(rank, shape, folder.path()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let addresses: Vec<_> = members.iter().map(Member::address).collect();
    // All members, and this thread.
    let connected = Arc::new(Barrier::new(members.len() + 1));
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let running: Vec<_> = members
            .into_iter()
            .map(|mut member| {
                let (connected, addresses, ended) = (Arc::clone(&connected), &addresses, &ended);
                scope.spawn(move || {
                    let outcome = member.connect(addresses);
                    connected.wait();
                    outcome.and_then(|()| member.run(transport, ended))
                })
            })
            .collect();
        connected.wait();
        let began = Instant::now();
        for member in running {
            member.join().map_err(|_| anyhow::anyhow!("a member has panicked"))??;
        }
        Ok(began.elapsed().as_secs_f64())
    })
}
