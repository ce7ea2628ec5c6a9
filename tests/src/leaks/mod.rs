//! Load with kills of every kind of program, and what memory it leaves in use once everything was
//! deleted: no more than the same load leaves without kills.
//!
//! | module | holds |
//! |---|---|
//! | `scene` | the programs: started, killed, started again, ended |
//! | `requests` | what clients of the services ask for |
//! | `files` | what programs do in the mounts |
//! | `usage` | what is in use, by size of object, and in the tables |

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

/// By how much memory in use may differ, in bytes.
const SLACK: u64 = 1 << 20;
/// What may be in use when everything was deleted: the directories of three tables are more than
/// half of it, some segments the rest.
const EMPTY: u64 = 2 << 20;
/// The longest run without kills: tables have got as large as these loads make them long before.
const LONGEST_REFERENCE: Duration = Duration::from_secs(60);
/// How long sweeps may take to find what the killed have left.
const SWEEPS: Duration = Duration::from_secs(60);
/// How long memory in use must stay the same to count as settled.
const STILL: Duration = Duration::from_secs(3);
/// Between two looks at memory in use.
const LOOK: Duration = Duration::from_millis(100);

/// A kind of program that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Programs that use the library.
    Clients,
    /// Instances of `rackpool-kv`.
    Services,
    /// `rackpool-fuse`.
    Mounts,
    /// The racks' daemons.
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

/// What is tried.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// How long programs are killed.
    pub time: Duration,
    /// How long they are left alone between two kills, on average.
    pub kill_every: Duration,
    /// What the kills and the loads follow from.
    pub seed: u64,
    /// The kinds of processes to kill.
    pub kinds: Vec<Kind>,
}

/// What a load has left.
#[derive(Debug, Default)]
struct Outcome {
    /// In use when everything was deleted, and the programs still ran.
    running: Usage,
    /// In use when they had ended.
    ended: Usage,
    /// How often a program of each kind was killed.
    kills: BTreeMap<Kind, u64>,
    /// How often a program ended that nobody had killed.
    gave_up: u64,
    /// Operations of the loads that were done.
    operations: u64,
}

/// What a campaign has found.
#[derive(Debug)]
pub struct Report {
    calm: Outcome,
    struck: Outcome,
}

impl Report {
    /// Bytes in use after kills that the same load does not leave without them.
    #[must_use]
    pub fn leaked(&self) -> u64 {
        self.struck.ended.bytes().saturating_sub(self.calm.ended.bytes())
    }

    /// Whether that is more than may be, or the load leaves too much by itself.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.leaked() > SLACK || self.calm.ended.bytes() > EMPTY
    }

    /// How often programs were killed.
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

/// Has programs killed under load, and compares what is in use afterwards with what the same load
/// leaves without kills.
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

/// What the threads of the loads share.
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

/// One load from beginning to end. With `expected` memory in use is waited for to fall to that.
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

/// Ends the loads when the thread that kills has ended, or has panicked.
struct EndsLoads<'a>(&'a Counts);

impl Drop for EndsLoads<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// Waits until sweeps have taken what they take.
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
