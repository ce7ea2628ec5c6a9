//! Many small objects in one rack: the memory of each, the rates of puts and gets, and the time in
//! which those that a killed program has not sealed come back.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_objects::{CreateOptions, Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::helper::Helper;
use crate::measure::time_each;
use crate::table::Table;

/// The environment variable with the number of objects.
pub const VARIABLE: &str = "RACKPOOL_BENCH_OBJECTS";
/// The argument with which this program creates objects until it is killed.
pub const ARGUMENT: &str = "--creator";
/// The number of objects if the environment names none.
const OBJECTS: u64 = 500_000;
const BYTES: usize = 100;
/// Memory of the rack for each object: more than the limit, and the bytes.
const ROOM: u64 = 400;
const GETS: usize = 200_000;
/// Objects that the killed program has created and not sealed.
const UNSEALED: u64 = 100_000;
const STORE: &str = "many";
/// How long to wait for what a limit of a second is set for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let count = match std::env::var(VARIABLE) {
        Ok(count) => count.parse().with_context(|| format!("{VARIABLE}={count} is no number"))?,
        Err(_) => OBJECTS,
    };
    let mut options = ClusterOptions::ephemeral()?;
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.racks = 1;
    let page_bytes = options.page_size;
    options.memory = ((1 << 30) + count * ROOM).next_multiple_of(page_bytes);
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let pool = Arc::new(Pool::open(ClientOptions::new(&dir, RackId(0)))?);
    let store = Store::open_or_create(Arc::clone(&pool), STORE)?;
    table.section(&format!("{count} objects of {BYTES} B in one rack"));

    let before = pool.rack_status()?.free_frames;
    let mut failed = Ok(());
    let put = time_each(usize::try_from(count)?, || {
        failed = (0..count).try_for_each(|number| {
            store.put(&id(number), &[byte(number); BYTES], &CreateOptions::default())
        });
    });
    failed?;
    let pages = before - pool.rack_status()?.free_frames;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let each = (u64::from(pages) * page_bytes) as f64 / count as f64;
    let detail = format!("{each:.0} B of pages each");
    table.at_most("memory above the bytes", each - BYTES as f64, 200.0, "B", &detail);
    table.figure("put", put / 1e3, "us", "one program");

    let mut random = SmallRng::seed_from_u64(5);
    let numbers: Vec<u64> = (0..GETS).map(|_| random.random_range(0..count)).collect();
    let mut failed = Ok(());
    let get = time_each(GETS, || {
        failed = numbers.iter().try_for_each(|number| {
            let view = store.get(&id(*number))?.context("an object is lost")?;
            ensure!(view.len() == BYTES && view[0] == byte(*number), "other bytes");
            black_box(view.last());
            Ok(())
        });
    });
    failed?;
    table.figure("get and release, any order", get / 1e3, "us", "one program");
    unsealed(table, &pool, &dir)?;
    drop((store, pool));
    cluster.stop()
}

fn unsealed(table: &mut Table, pool: &Pool, dir: &Path) -> anyhow::Result<()> {
    let before = pool.rack_status()?.fixed.objects;
    let mut creator = Helper::start(ARGUMENT, &[dir.display().to_string()])?;
    creator.hear()?;
    let fixed = || anyhow::Ok(pool.rack_status()?.fixed.objects);
    wait(|| Ok(fixed()? >= before + UNSEALED))?;
    let began = Instant::now();
    creator.kill()?;
    wait(|| Ok(fixed()? <= before))?;
    let took = began.elapsed().as_secs_f64();
    let detail = format!("{UNSEALED} objects of a program that is killed");
    table.at_most("unsealed objects are back after", took, 1.0, "s", &detail);
    Ok(())
}

/// Creates objects and seals none, in the pool of the first argument; then waits.
///
/// # Errors
/// If an object can't be created.
pub fn be_creator(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let dir = arguments.next().context("the pool's folder")?;
    let pool = Arc::new(Pool::open(ClientOptions::new(dir, RackId(0)))?);
    let store = Store::open_or_create(pool, STORE)?;
    let create = |number| {
        let mut object =
            store.create(&id(u64::MAX - number), BYTES as u64, &CreateOptions::default())?;
        object.fill(1);
        anyhow::Ok(object)
    };
    let objects = (0..UNSEALED).map(create).collect::<Result<Vec<_>, _>>()?;
    println!("created {}", objects.len());
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn wait(mut until: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !until()? {
        ensure!(Instant::now() < deadline, "the daemon's counts stay as they are");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// An id of 20 B.
fn id(number: u64) -> [u8; 20] {
    let mut id = [b'.'; 20];
    id[..16].copy_from_slice(format!("{number:016x}").as_bytes());
    id
}

const fn byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}
