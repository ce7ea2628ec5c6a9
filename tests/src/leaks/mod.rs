//! Load while programs of every kind are killed, and the memory that stays in use after everything
//! was deleted. It must not exceed what the same load leaves without kills.
//!
//! | module | holds |
//! |---|---|
//! | `scene` | the programs: started, killed, restarted, ended |
//! | `requests` | the load on the services |
//! | `files` | the load in the mounts |
//! | `usage` | memory in use by object size, and entries of the tables |

mod files;
mod requests;
mod scene;
mod usage;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use scene::Scene;
pub use usage::Usage;

/// The most by which memory in use may exceed the reference, in bytes.
const SLACK: u64 = 1 << 20;
/// The most that may be in use after everything was deleted: more than half of it is the
/// directories of three tables, the rest some segments.
const EMPTY: u64 = 2 << 20;
/// The longest run without kills. The tables reach their largest size long before its end.
const LONGEST_REFERENCE: Duration = Duration::from_secs(60);
/// The most time for sweeps to find what killed programs have left.
const SWEEPS: Duration = Duration::from_secs(60);
/// Memory in use counts as settled when it has not changed for this time.
const STILL: Duration = Duration::from_secs(3);
/// Interval between two reads of the memory in use.
const LOOK: Duration = Duration::from_millis(100);

/// A kind of program that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Programs that use the library.
    Clients,
    /// Instances of `rackpool-kv`.
    Services,
    /// Instances of `rackpool-fuse`.
    Mounts,
    /// The rack daemons.
    Daemons,
    /// The metadata server.
    Metadata,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Clients, Self::Services, Self::Mounts, Self::Daemons, Self::Metadata];

    const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Services => "services",
            Self::Mounts => "mounts",
            Self::Daemons => "daemons",
            Self::Metadata => "metadata",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("'{text}' is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Duration of the phase with kills.
    pub time: Duration,
    /// Average time between two kills.
    pub kill_every: Duration,
    /// Seed of the kills and the loads.
    pub seed: u64,
    /// The kinds of processes to kill.
    pub kinds: Vec<Kind>,
}

/// Results of one load.
#[derive(Debug, Default)]
struct Outcome {
    /// In use after everything was deleted, while the programs still ran.
    running: Usage,
    /// In use after the programs had ended.
    ended: Usage,
    /// Kills by kind of program.
    kills: BTreeMap<Kind, u64>,
    /// Programs that ended without having been killed.
    gave_up: u64,
    /// Completed operations of the loads.
    operations: u64,
}

/// Results of a campaign: the load without kills (`calm`) and with kills (`struck`).
#[derive(Debug)]
pub struct Report {
    calm: Outcome,
    struck: Outcome,
}

impl Report {
    /// Bytes that are in use after the load with kills beyond those after the load without.
    #[must_use]
    pub fn leaked(&self) -> u64 {
        self.struck.ended.bytes().saturating_sub(self.calm.ended.bytes())
    }

    /// Returns true if that exceeds the limit, or if the load without kills leaves too much.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.leaked() > SLACK || self.calm.ended.bytes() > EMPTY
    }

    /// The number of kills.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.struck.kills.values().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calm, struck } = self;
        for (kind, count) in &struck.kills {
            write!(f, "{count} {kind} killed, ")?;
        }
        writeln!(
            f,
            "{} ended by themselves; {} operations without kills, {} with kills",
            struck.gave_up, calm.operations, struck.operations
        )?;
        usage::compare(f, &[("no kills", &calm.ended), ("kills", &struck.ended)])?;
        writeln!(f, "before the programs ended:")?;
        usage::compare(f, &[("no kills", &calm.running), ("kills", &struck.running)])?;
        write!(f, "{} B more in use than without kills", self.leaked())
    }
}

/// Runs the load with kills and without, and compares the memory that stays in use.
#[must_use]
pub fn run(campaign: &Campaign) -> Report {
    let calm = Campaign {
        time: campaign.time.min(LONGEST_REFERENCE),
        kinds: Vec::new(),
        ..campaign.clone()
    };
    let calm = round(&calm, None);
    let struck = round(campaign, Some(calm.running.bytes()));
    Report { calm, struck }
}

/// State that the threads of the loads share.
#[derive(Debug, Default)]
struct Counts {
    ended: AtomicBool,
    operations: AtomicU64,
}

impl Counts {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn done(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs one load from start to end. With `expected`, waits until memory in use has fallen to that.
fn round(campaign: &Campaign, expected: Option<u64>) -> Outcome {
    let mut scene = Scene::start(campaign.seed);
    let mut random = SmallRng::seed_from_u64(campaign.seed);
    let mut outcome = Outcome::default();
    let counts = Counts::default();
    let sockets = scene.sockets();
    let folders: Vec<PathBuf> = scene.folders();
    std::thread::scope(|scope| {
        let _ends = EndsLoads(&counts);
        for (seed, socket) in (campaign.seed..).zip(sockets.iter().chain(&sockets)) {
            let counts = &counts;
            scope.spawn(move || requests::ask(socket, seed, counts));
        }
        for (seed, folder) in (campaign.seed..).zip(&folders) {
            let counts = &counts;
            scope.spawn(move || files::work(folder, seed, counts));
        }
        let end = Instant::now() + campaign.time;
        while Instant::now() < end {
            let pause = campaign.kill_every.mul_f64(random.random_range(0.5..1.5));
            std::thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
            outcome.gave_up += scene.revive();
            if !campaign.kinds.is_empty() {
                for kind in scene.strike(&campaign.kinds, &mut random) {
                    *outcome.kills.entry(kind).or_default() += 1;
                }
            }
        }
    });
    outcome.operations = counts.operations.into_inner();
    outcome.gave_up += scene.revive();
    scene.clear();
    settle(&scene, expected);
    outcome.running = scene.usage();
    outcome.ended = scene.end();
    outcome
}

/// Ends the loads when the killing thread ends or panics.
struct EndsLoads<'a>(&'a Counts);

impl Drop for EndsLoads<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// Waits until the sweeps have freed all they find.
fn settle(scene: &Scene, expected: Option<u64>) {
    let begin = Instant::now();
    let (mut last, mut since) = (scene.bytes(), Instant::now());
    while begin.elapsed() < SWEEPS {
        std::thread::sleep(LOOK);
        let now = scene.bytes();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let is_low = expected.is_none_or(|expected| now <= expected + SLACK / 4);
        if is_low && scene.leaving_pages() == 0 && since.elapsed() >= STILL {
            return;
        }
    }
}
