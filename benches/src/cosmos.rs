//! Objects that one rack copies to groups of three of fifteen racks, as a storage service copies
//! what is written: sizes and groups of the Cosmos trace in the RDMC paper (section 5.2), a
//! sixteenth as large. Several casts run at once and share the root's link.

use std::f64::consts::TAU;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_client::RackId;
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_objects::{CastAgent, CastOptions, CastSchedule, CreateOptions, Store};
use rackpool_testing::StopAtEnd;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

use crate::casts::open;
use crate::measure::median;
use crate::table::Table;

const RACKS: u16 = 16;
const REPLICAS: usize = 3;
/// Slow, so that the root's link and not the two cores are the limit.
const GBPS: f64 = 0.1;
/// Median and mean of the log-normal sizes, in bytes: 12 MB and 29 MB in the trace.
const MEDIAN: f64 = 12e6 / 16.0;
const MEAN: f64 = 29e6 / 16.0;
const OBJECTS: usize = 24;
/// Casts at the same time.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 1;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    (options.racks, options.memory, options.bandwidth_gbps) = (RACKS, 256 << 20, GBPS);
    options.daemon_arguments = vec![("--swap", "off".into())];
    let cluster = Cluster::start(options)?;
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for rack in 1..RACKS {
            let agent = CastAgent::new(open(&cluster, rack, CastAgent::THREADS)?);
            let stop = &stop;
            scope.spawn(move || agent.serve(stop, |_| ()));
        }
        let threads = u16::try_from(AT_ONCE)? + 1;
        let store = Store::open_or_create(open(&cluster, 0, threads)?, "cosmos")?;
        while store.cast_racks()?.len() < usize::from(RACKS - 1) {
            std::thread::sleep(Duration::from_millis(10));
        }
        measure(table, &store)
    });
    measured?;
    cluster.stop()
}

fn measure(table: &mut Table, store: &Store) -> anyhow::Result<()> {
    let jobs = jobs(&mut SmallRng::seed_from_u64(1));
    let bytes: usize = jobs.iter().map(|job| job.bytes).sum();
    let schedules =
        [CastSchedule::BinomialPipeline, CastSchedule::BinomialTree, CastSchedule::Sequential];
    let mut times = schedules.map(|_| Vec::new());
    // The first round opens tables and connections.
    for round in 0..=ROUNDS {
        for (schedule, times) in schedules.into_iter().zip(&mut times) {
            let took = cast_all(store, &jobs, schedule)?;
            if round > 0 {
                times.push(took);
            }
        }
    }
    let [pipeline, tree, sequential] = times.map(median);
    table.section(&format!(
        "{OBJECTS} objects, {:.1} MB on average, from one rack to {REPLICAS} of {}, {AT_ONCE} at once, links of {GBPS} Gbit/s",
        MEAN / 1e6,
        RACKS - 1
    ));
    for (name, time, limit) in [("tree", tree, 2.0), ("sequential", sequential, 3.0)] {
        let detail = format!("{:.2} against {:.2} s", time, pipeline);
        table.at_least(&format!("{name} / pipeline"), time / pipeline, limit, "x", &detail);
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let once = bytes as f64 * 8.0 / (GBPS * 1e9);
    let detail = format!("{pipeline:.2} against {once:.2} s");
    table.figure("pipeline / one copy of all", pipeline / once, "x", &detail);
    Ok(())
}

/// An object and the racks that get it.
struct Job {
    id: String,
    bytes: usize,
    racks: Vec<RackId>,
}

fn jobs(random: &mut SmallRng) -> Vec<Job> {
    let sigma = (2.0 * (MEAN / MEDIAN).ln()).sqrt();
    let job = |number| {
        // Box and Muller's way to a normal distribution.
        let [a, b]: [f64; 2] = random.random();
        let normal = (-2.0 * (1.0 - a).ln()).sqrt() * (TAU * b).cos();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some megabytes"
        )]
        let bytes = (MEDIAN * (sigma * normal).exp()).clamp(1.0, 32e6) as usize;
        let others = sample(random, usize::from(RACKS - 1), REPLICAS).into_iter();
        let racks = others.filter_map(|rack| Some(RackId(u16::try_from(rack).ok()? + 1))).collect();
        Job { id: format!("object-{number}"), bytes, racks }
    };
    (0..OBJECTS).map(job).collect()
}

/// The time in which all jobs are done, in seconds.
fn cast_all(store: &Store, jobs: &[Job], schedule: CastSchedule) -> anyhow::Result<f64> {
    for job in jobs {
        store.put(job.id.as_bytes(), &vec![7; job.bytes], &CreateOptions::default())?;
    }
    let options =
        CastOptions { schedule, grace: Duration::from_secs(60), ..CastOptions::default() };
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let casts = || -> anyhow::Result<()> {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let report = store.cast(job.id.as_bytes(), &job.racks, &options, |_| ())?;
                let report = report.context("the object is in the store")?;
                ensure!(report.is_complete(), "not all racks have the object: {report:?}");
            }
            Ok(())
        };
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(casts)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a cast has panicked"))??;
        }
        anyhow::Ok(())
    })?;
    let took = began.elapsed().as_secs_f64();
    for job in jobs {
        store.delete(job.id.as_bytes())?;
    }
    // Memory comes back with a scan of its daemon.
    std::thread::sleep(Duration::from_millis(200));
    Ok(took)
}
