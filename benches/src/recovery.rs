//! A daemon is killed and restarted at once: the time until each kind of user gets its first
//! correct answer.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, GlobalAddr, Pool};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::FabricKind;

use crate::fuse::{Folders, Ours};
use crate::measure::{median, percentile};
use crate::service;
use crate::swap::RACKS;
use crate::table::Table;

/// Number of kills.
const ROUNDS: usize = 100;
/// Time between two kills, in which all users resume their work.
const PAUSE: Duration = Duration::from_millis(100);
/// A wait that exceeds this fails the benchmark.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The limit that issue and design set, in milliseconds.
const LIMIT_MS: f64 = 50.0;

/// One numbered operation that checks its answer.
type Work = Box<dyn FnMut(u64) -> io::Result<()> + Send>;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section(&format!(
        "a daemon is killed and started again at once: from the kill to the first right answer, \
         p99 of {ROUNDS} kills"
    ));
    let mut options = ClusterOptions::ephemeral()?;
    options.fabric = FabricKind::Tcp;
    // Swaps would make remote objects local.
    options.daemon_arguments = vec![("--swap", "off".into())];
    let mut cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, rack));
    let (near, far) = (open(RACKS[0])?, open(RACKS[1])?);
    let shared = near.alloc(64)?;
    let socket = dir.join("kv.sock");
    let service = service::Server::start(
        &service::program("rackpool-kv")?,
        &["--rack", "0", "--dir", path(&dir)?, "--unix", path(&socket)?],
        socket.clone(),
    )?;
    let mut users: Vec<(&str, Work)> = vec![
        ("a program in the rack (allocates and frees 1 MiB)", allocates(near)),
        ("a program in another rack (writes and reads 64 B)", uses(far, shared)),
        ("a client of rackpool-kv (SET and GET)", asks(&socket)?),
    ];
    let mount = if Path::new("/dev/fuse").exists() {
        let folders = Folders::make(&dir)?;
        let mount = Ours::start(&dir, &folders.ours)?;
        users.push(("a program on a mount (makes, reads, removes a link)", links(&folders.ours)));
        Some((mount, folders))
    } else {
        table.not_measured("there is no /dev/fuse");
        None
    };
    let names: Vec<&str> = users.iter().map(|(name, _)| *name).collect();
    let waits = kill_while_used(users, || {
        cluster.daemon(RACKS[0])?.kill()?;
        let killed = Instant::now();
        cluster.restart_daemon(RACKS[0])?;
        Ok(killed)
    })?;
    for (name, mut waits) in names.into_iter().zip(waits) {
        waits.sort_by(f64::total_cmp);
        let detail = format!(
            "median {:.1}, longest {:.1} ms",
            median(waits.clone()),
            waits.last().copied().unwrap_or(f64::NAN)
        );
        table.at_most(name, percentile(&waits, 990), LIMIT_MS, "ms", &detail);
    }
    drop((mount, service));
    cluster.stop()
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is text")
}

/// Kills the users' server repeatedly. Returns for each user and kill the milliseconds from the
/// kill to the end of the first successful operation that began after the kill.
fn kill_while_used(
    users: Vec<(&str, Work)>,
    mut kill: impl FnMut() -> anyhow::Result<Instant>,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let over = AtomicBool::new(false);
    let count = users.len();
    let ended: Vec<Mutex<Vec<(Instant, Instant)>>> = (0..count).map(|_| Mutex::default()).collect();
    let successes: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let first_after = |user: usize, killed: Instant| {
        let ended = ended[user].lock().ok()?;
        let (_, end) = ended.iter().find(|(began, _)| *began >= killed)?;
        Some(end.duration_since(killed).as_secs_f64() * 1e3)
    };
    std::thread::scope(|scope| {
        for (user, (_, mut work)) in users.into_iter().enumerate() {
            let (over, ended, successes) = (&over, &ended[user], &successes[user]);
            scope.spawn(move || {
                for number in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let began = Instant::now();
                    match work(number) {
                        Ok(()) => {
                            successes.fetch_add(1, Ordering::Relaxed);
                            if let Ok(mut ended) = ended.lock() {
                                ended.push((began, Instant::now()));
                            }
                        }
                        Err(_) => std::thread::sleep(Duration::from_micros(200)),
                    }
                    // The machine has two cores, and the starting daemon needs one.
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
        let mut measure = || {
            let mut waits = vec![Vec::new(); count];
            for _ in 0..ROUNDS {
                std::thread::sleep(PAUSE);
                ended
                    .iter()
                    .for_each(|ended| ended.lock().map(|mut ended| ended.clear()).unwrap_or(()));
                let killed = kill()?;
                for (user, waits) in waits.iter_mut().enumerate() {
                    let wait = loop {
                        if let Some(wait) = first_after(user, killed) {
                            break wait;
                        }
                        ensure!(killed.elapsed() < TIMEOUT, "user {user} has no answer");
                        std::thread::sleep(Duration::from_millis(1));
                    };
                    waits.push(wait);
                }
            }
            Ok(waits)
        };
        let waits = measure();
        over.store(true, Ordering::Relaxed);
        waits
    })
}

/// Allocation needs the daemon of the client's rack.
fn allocates(pool: Pool) -> Work {
    Box::new(move |_| {
        let addr = pool.alloc(1 << 20).map_err(io::Error::other)?;
        pool.free(addr).map_err(io::Error::other)
    })
}

fn uses(pool: Pool, addr: GlobalAddr) -> Work {
    Box::new(move |number| {
        let (written, mut read) = (number.to_le_bytes(), [0; 8]);
        pool.write(addr, &written).map_err(io::Error::other)?;
        pool.read(addr, &mut read).map_err(io::Error::other)?;
        if read == written { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    })
}

fn asks(socket: &Path) -> anyhow::Result<Work> {
    let mut stream = BufReader::new(UnixStream::connect(socket)?);
    let mut line = String::new();
    Ok(Box::new(move |number| {
        let value = format!("{number:01000}");
        let mut asked = |request: &str, lines: usize| {
            stream.get_mut().write_all(request.as_bytes())?;
            line.clear();
            for _ in 0..lines {
                stream.read_line(&mut line)?;
                if line.starts_with('-') {
                    break;
                }
            }
            Ok::<_, io::Error>(line.trim_end().to_owned())
        };
        let key = number % 100;
        let stored = asked(&format!("SET key{key} {value}\r\n"), 1)?;
        let found = asked(&format!("GET key{key}\r\n"), 2)?;
        let right = stored == "+OK" && found.ends_with(&value);
        if right { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }))
}

/// Opens no file: a starting daemon would briefly inherit the descriptor, and its first close of it
/// waits for the mount, which waits for the daemon.
fn links(folder: &Path) -> Work {
    let name: PathBuf = folder.join("link");
    Box::new(move |number| {
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(number.to_string(), &name)?;
        let found = std::fs::read_link(&name)?;
        let right = found.to_str() == Some(&number.to_string());
        if right { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    })
}
