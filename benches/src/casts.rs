//! Casts of an object to three and to seven racks, beside a get in one; and gets of many racks at
//! the same time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_objects::{CastAgent, CastOptions, CastSchedule, CreateOptions, Store};
use rackpool_proto::multicast::schedule::Shape;
use rackpool_testing::StopAtEnd;

use crate::measure::median;
use crate::table::Table;

const RACKS: u16 = 8;
/// Slow, so that the links and not the two cores are the limit.
const GBPS: f64 = 2.0;
const BYTES: usize = 128 << 20;
const BLOCK: u64 = 1 << 20;
const ROUNDS: usize = 3;
/// The sizes of a group, with its root.
const GROUPS: [u16; 2] = [4, 8];
const ID: &[u8] = b"object";

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    (options.racks, options.memory, options.bandwidth_gbps) = (RACKS, 512 << 20, GBPS);
    options.daemon_arguments = vec![("--swap", "off".into())];
    let cluster = Cluster::start(options)?;
    let open = |rack, threads| open(&cluster, rack, threads);
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for rack in 1..RACKS {
            let agent = CastAgent::new(open(rack, CastAgent::THREADS)?);
            let stop = &stop;
            scope.spawn(move || agent.serve(stop, |_| ()));
        }
        let stores: Vec<_> = (0..RACKS)
            .map(|rack| anyhow::Ok(Store::open_or_create(open(rack, 2)?, "casts")?))
            .collect::<Result<_, _>>()?;
        while stores[0].cast_racks()?.len() < usize::from(RACKS - 1) {
            std::thread::sleep(Duration::from_millis(10));
        }
        measure(table, &stores)
    });
    measured?;
    cluster.stop()
}

/// Opens the pool in a rack.
pub(crate) fn open(cluster: &Cluster, rack: u16, threads: u16) -> anyhow::Result<Arc<Pool>> {
    let options = ClientOptions::new(&cluster.options().dir, RackId(rack)).threads(threads);
    Ok(Arc::new(Pool::open(options)?))
}

fn measure(table: &mut Table, stores: &[Store]) -> anyhow::Result<()> {
    let (bytes, racks) = (vec![7; BYTES], usize::from(RACKS));
    let (mut gets, mut casts, mut gets_of_many) =
        (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
    // The first round opens tables and connections.
    for round in 0..=ROUNDS {
        let get = with_object(&stores[0], &bytes, || get_s(&stores[1..2]))?;
        let get_of_many = with_object(&stores[0], &bytes, || get_s(&stores[1..racks]))?;
        if round > 0 {
            gets.push(get);
            gets_of_many.push(get_of_many / get);
        }
        for (group, casts) in GROUPS.into_iter().zip(&mut casts) {
            let options = patient();
            let took = with_object(&stores[0], &bytes, || cast_s(&stores[0], group, &options))?;
            if round > 0 {
                casts.push(took / get);
            }
        }
    }
    let title = format!(
        "{} MiB to many racks, over links of {GBPS} Gbit/s, against a get in one rack",
        BYTES >> 20
    );
    table.section(&title);
    let get = median(gets);
    for ((group, casts), limit) in GROUPS.into_iter().zip(casts).zip([1.03, 1.05]) {
        let ratio = median(casts);
        let detail = format!("{:.0} against {:.0} ms", ratio * get * 1e3, get * 1e3);
        table.at_most(&format!("a cast in a group of {group}"), ratio, limit, "x", &detail);
    }
    let ratio = median(gets_of_many);
    let detail = format!("{:.0} against {:.0} ms", ratio * get * 1e3, get * 1e3);
    let name = format!("gets of {} racks at once, which form a chain", RACKS - 1);
    table.at_most(&name, ratio, 1.5, "x", &detail);
    schedules(table, &stores[0], &bytes)
}

/// Casts with each schedule, against the time of its steps on links that lose nothing.
fn schedules(table: &mut Table, root: &Store, bytes: &[u8]) -> anyhow::Result<()> {
    table.section("a cast in blocks of 1 MiB, against the steps of its schedule");
    let blocks = u32::try_from(BYTES as u64 / BLOCK)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let block_s = BLOCK as f64 * 8.0 / (GBPS * 1e9);
    for schedule in [
        CastSchedule::BinomialPipeline,
        CastSchedule::Chain,
        CastSchedule::BinomialTree,
        CastSchedule::Sequential,
    ] {
        for group in GROUPS {
            let steps = Shape::new(schedule, group, blocks).steps();
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let ideal = steps as f64 * block_s;
            let options = CastOptions { schedule, block_bytes: Some(BLOCK), ..patient() };
            let took: Result<Vec<_>, _> = (0..ROUNDS.div_ceil(2))
                .map(|_| with_object(root, bytes, || cast_s(root, group, &options)))
                .collect();
            let took = median(took?);
            let detail = format!("{:.0} against {:.0} ms", took * 1e3, ideal * 1e3);
            let name = format!("{}, a group of {group}", schedule.name());
            table.at_most(&name, took / ideal, 1.05, "x", &detail);
        }
    }
    Ok(())
}

/// Options with which no rack of a busy machine is taken for lost.
fn patient() -> CastOptions {
    CastOptions { grace: Duration::from_secs(60), ..CastOptions::default() }
}

/// Runs `work` while the object is in the root's store and nowhere else.
fn with_object<T>(
    root: &Store,
    bytes: &[u8],
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    root.put(ID, bytes, &CreateOptions::default())?;
    let done = work()?;
    root.delete(ID)?;
    // Memory comes back with a scan of its daemon.
    std::thread::sleep(Duration::from_millis(200));
    Ok(done)
}

/// The time in which all of these racks get the object, in seconds.
fn get_s(stores: &[Store]) -> anyhow::Result<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let gets: Vec<_> = stores.iter().map(|store| scope.spawn(|| store.get(ID))).collect();
        for get in gets {
            let view = get.join().map_err(|_| anyhow::anyhow!("a get has panicked"))??;
            view.context("the object is in the store")?;
        }
        Ok(begin.elapsed().as_secs_f64())
    })
}

/// The time of a cast to a group of this size, in seconds.
fn cast_s(root: &Store, group: u16, options: &CastOptions) -> anyhow::Result<f64> {
    let racks: Vec<_> = (1..group).map(RackId).collect();
    let report = root.cast(ID, &racks, options, |_| ())?.context("the object is in the store")?;
    ensure!(report.is_complete(), "not all racks have the object: {report:?}");
    Ok(report.took.as_secs_f64())
}
