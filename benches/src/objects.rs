//! Objects of a store: gets of any size in the own rack, puts against a plain copy, and transfers
//! from another rack against the fabric's bandwidth; moves to files and back against plain reads
//! and writes of files.

use std::hint::black_box;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_objects::{CreateOptions, EvictionPolicy, Store, StoreOptions};

use crate::measure::{in_turn, median};
use crate::table::Table;

/// Gets of each object.
const GETS: usize = 20_000;
/// Transfers of each size.
const TRANSFERS: usize = 15;
/// The bandwidth of the fabric: less than that of copies on any machine.
const GBPS: f64 = 10.0;
const STORE: &str = "bench";

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = 3 << 30;
    options.bandwidth_gbps = GBPS;
    let disk = tempfile::tempdir()?;
    options.daemon_arguments.push(("--spill-dir", disk.path().display().to_string()));
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let open = |rack| {
        let pool = Pool::open(ClientOptions::new(&dir, RackId(rack)))?;
        anyhow::Ok(Store::open_or_create(Arc::new(pool), STORE)?)
    };
    let (own, far) = (open(0)?, open(1)?);
    gets(table, &own)?;
    puts(table, &own)?;
    transfers(table, &own, &far)?;
    files(table, &own)?;
    drop((own, far));
    cluster.stop()
}

fn gets(table: &mut Table, store: &Store) -> anyhow::Result<()> {
    table.section("objects of the own rack, p50");
    for (name, bytes) in [("1 KiB", 1 << 10), ("1 GiB", 1 << 30)] {
        let id = name.as_bytes();
        store.create(id, bytes, &CreateOptions::default())?.seal()?;
        let get = p50_us(|| {
            let view = store.get(id)?.context("the object is in the store")?;
            black_box(view.first());
            Ok(())
        })?;
        table.at_most(&format!("get and release of {name}"), get, 2.0, "us", "nothing is copied");
        let contains = p50_us(|| {
            black_box(store.contains(id)?);
            Ok(())
        })?;
        table.at_most(&format!("contains of {name}"), contains, 2.0, "us", "");
        store.delete(id)?;
    }
    Ok(())
}

fn puts(table: &mut Table, store: &Store) -> anyhow::Result<()> {
    table.section("put, with checksum, against a plain copy into the same memory");
    for (name, bytes) in [("1 MiB", 1 << 20), ("64 MiB", 64 << 20)] {
        let source = vec![7; bytes];
        let mut target = store.create(b"target", bytes as u64, &CreateOptions::default())?;
        let mut failed = None;
        let pair = in_turn(
            || {
                let began = Instant::now();
                let put = store.put(b"put", &source, &CreateOptions::default());
                let took = began.elapsed();
                let ended = put.and_then(|()| store.delete(b"put"));
                failed = failed.take().or(ended.err());
                took.as_secs_f64() * 1e6
            },
            || {
                let began = Instant::now();
                target.copy_from_slice(black_box(&source));
                began.elapsed().as_secs_f64() * 1e6
            },
        );
        if let Some(error) = failed {
            return Err(error.into());
        }
        let detail = format!("{:.0} us against {:.0} us", pair.ours, pair.peer);
        table.at_most(&format!("put of {name}"), pair.ratio, 1.5, "x", &detail);
    }
    Ok(())
}

fn transfers(table: &mut Table, own: &Store, far: &Store) -> anyhow::Result<()> {
    table.section(&format!("the first get in another rack, over a fabric of {GBPS} Gbit/s"));
    for (name, bytes) in [("4 MiB", 4 << 20), ("64 MiB", 64 << 20)] {
        far.put(b"far", &vec![7; bytes], &CreateOptions::default())?;
        let object = far.stat(b"far")?.context("the object is in the store")?;
        let mut took = Vec::new();
        for number in 0..TRANSFERS {
            let id = format!("far-{number}");
            far.put(id.as_bytes(), &vec![7; bytes], &CreateOptions::default())?;
            let began = Instant::now();
            let view = own.get(id.as_bytes())?.context("the object is in the store")?;
            took.push(began.elapsed().as_secs_f64());
            anyhow::ensure!(view.checksum() == object.info.checksum, "other bytes came");
            drop(view);
            own.delete(id.as_bytes())?;
        }
        far.delete(b"far")?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let ideal = bytes as f64 * 8.0 / (GBPS * 1e9);
        let middle = median(took);
        let detail = format!("{:.2} ms against {:.2} ms", middle * 1e3, ideal * 1e3);
        let name = format!("{name}: share of the fabric's bandwidth");
        table.at_least(&name, 100.0 * ideal / middle, 90.0, "%", &detail);
    }
    Ok(())
}

/// Moves an object to a file and back, against copies between memory and a file on the same disk.
/// Both use the kernel's page cache.
fn files(table: &mut Table, store: &Store) -> anyhow::Result<()> {
    table.section("an object of 64 MiB and a file, against plain reads and writes");
    store.set_options(&StoreOptions { policy: EvictionPolicy::Spill, ..store.options()? })?;
    let source = vec![7; 64 << 20];
    let folder = store.pool().spill_folder().context("the daemon has a folder for files")?;
    let path = folder.join("plain");
    let mut failed = None;
    let mut timed = |work: &mut dyn FnMut() -> anyhow::Result<f64>| {
        work().unwrap_or_else(|error| {
            failed = failed.take().or(Some(error));
            f64::NAN
        })
    };
    let mut spill = || {
        store.delete(b"spilled")?;
        store.put(b"spilled", &source, &CreateOptions::default())?;
        let began = Instant::now();
        anyhow::ensure!(store.evict(u64::MAX)? > 0, "it is the only object");
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let mut write = || {
        let _ = std::fs::remove_file(&path);
        let began = Instant::now();
        std::fs::write(&path, black_box(&source))?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let mut restore = || {
        anyhow::ensure!(store.evict(u64::MAX)? > 0, "it is the only object");
        let began = Instant::now();
        let view = store.get(b"spilled")?.context("the object is in the store")?;
        black_box(view.first());
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let mut into = vec![0; source.len()];
    let mut read = || {
        let mut file = std::fs::File::open(&path)?;
        let began = Instant::now();
        file.read_exact(black_box(&mut into))?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let timed = std::cell::RefCell::new(&mut timed);
    let mut pairs = Vec::new();
    pairs.push(in_turn(|| timed.borrow_mut()(&mut spill), || timed.borrow_mut()(&mut write)));
    drop(store.get(b"spilled")?);
    pairs.push(in_turn(|| timed.borrow_mut()(&mut restore), || timed.borrow_mut()(&mut read)));
    if let Some(error) = failed {
        return Err(error);
    }
    for (name, pair) in ["spill", "restore"].iter().zip(pairs) {
        let detail = format!("{:.1} ms against {:.1} ms", pair.ours, pair.peer);
        table.at_most(&format!("{name}, with checksum"), pair.ratio, 1.5, "x", &detail);
    }
    Ok(())
}

/// The median time of an operation in microseconds.
fn p50_us(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut took = Vec::with_capacity(GETS);
    for _ in 0..GETS {
        let began = Instant::now();
        work()?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(took))
}
