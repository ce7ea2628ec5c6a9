//! Rounds: pages swap, somebody is hit, and then everything must be as promised.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_cli::cluster::ClusterOptions;
use rackpool_client::{GlobalAddr, Pool, RackId};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::atlas::Atlas;
use super::ledger::{Ledger, OBJECTS, WORKERS};
use super::round::{Blow, Moment, Round, Victim};
use super::worker::{self, OBJECT, ROOT};
use crate::census;
use crate::client::TestClient;
use crate::pool::{PAGE, TestPool};
use crate::wait::{PATIENCE, wait_for, wait_until};

/// No operation takes longer than this and what its rack's or page's daemon was away, whoever else
/// is hit: two leases and what it takes to start a daemon on a busy machine.
const STATED: Duration = Duration::from_secs(5);
/// The lease of daemons with the metadata server, in milliseconds.
const LEASE_MS: u64 = 500;
/// How long a moment that a round waits for may not come before the blow falls anyway.
const MOMENT: Duration = Duration::from_millis(300);
/// Operations of each worker between a blow and the end of its round.
const OPERATIONS: u64 = 50;

/// What a campaign has seen.
#[derive(Debug, Default)]
pub struct Report {
    /// Rounds.
    pub rounds: usize,
    /// Rounds whose moment in a swap came.
    pub moments: usize,
    /// Pages that were found in another rack than in the round before.
    pub moved: usize,
    /// Operations.
    pub operations: u64,
    /// The longest operation.
    pub longest: Duration,
    /// What must not be.
    pub problems: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rounds, {} of them hit a swap in a chosen phase",
            self.rounds, self.moments
        )?;
        writeln!(f, "{} pages changed their rack between rounds", self.moved)?;
        writeln!(f, "{} operations, the longest took {:?}", self.operations, self.longest)?;
        write!(f, "{} problems", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// A pool whose pages swap as fast as they go, and its workers.
struct Campaign {
    pool: TestPool,
    atlas: Atlas,
    ledger: Ledger,
    path: PathBuf,
    workers: Vec<TestClient>,
    /// A client that looks, in each rack.
    lookers: [Pool; 2],
    objects: Vec<GlobalAddr>,
    seed: u64,
    report: Report,
}

/// Runs so many rounds.
#[must_use]
pub fn run(rounds: usize, seed: u64) -> Report {
    let mut campaign = Campaign::start(seed);
    let mut random = SmallRng::seed_from_u64(seed);
    for number in 0..rounds {
        let round = Round::draw(&mut random);
        let before = campaign.atlas.homes();
        campaign.play(number, round);
        let after = campaign.atlas.homes();
        campaign.report.moved += after
            .iter()
            .filter(|(page, home)| before.get(page).is_some_and(|b| b != *home))
            .count();
        campaign.report.rounds += 1;
        if !campaign.report.problems.is_empty() {
            break;
        }
    }
    campaign.end()
}

/// A small number as an index.
fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

fn options(options: &mut ClusterOptions) {
    options.memory = 32 * PAGE;
    options.lease_ms = LEASE_MS;
    let as_fast_as_it_goes = [
        ("--swap", "on"),
        ("--hot", "1"),
        ("--rest-ms", "0"),
        ("--swap-pause-ms", "1"),
        ("--heat-lifetime-ms", "5"),
    ];
    options.daemon_arguments = as_fast_as_it_goes.map(|(name, value)| (name, value.into())).into();
}

impl Campaign {
    fn start(seed: u64) -> Self {
        let pool = TestPool::with(options);
        pool.wait_until_racks_meet();
        let lookers = [pool.open(0), pool.open(1)];
        let objects: Vec<GlobalAddr> = (0..OBJECTS)
            .map(|object| lookers[index(object % 2)].alloc(OBJECT).expect("room"))
            .collect();
        // On a busy machine a rack's heartbeat may be late already now.
        let write = |addr: GlobalAddr, bytes: &[u8]| {
            let written = wait_for("an object is written", PATIENCE, || {
                let written = lookers[0].write(addr, bytes);
                (!written.as_ref().is_err_and(worker::is_expected)).then_some(written)
            });
            written.expect("an access");
        };
        for addr in &objects {
            write(*addr, &vec![0; index(OBJECT)]);
        }
        let table = lookers[0].alloc(OBJECTS * 8).expect("room");
        let bytes: Vec<u8> = objects.iter().flat_map(|addr| addr.raw().to_le_bytes()).collect();
        write(table, &bytes);
        wait_until("the table has its name", PATIENCE, || {
            let named = lookers[0].set_root(ROOT, None, Some(table));
            named.is_ok_and(|(now, _)| now == Some(table))
        });
        let path = pool.dir().join("ledger");
        let ledger = Ledger::create(&path).expect("a new file");
        let atlas = Atlas::of(&pool);
        let mut campaign = Self {
            pool,
            atlas,
            ledger,
            path,
            workers: Vec::new(),
            lookers,
            objects,
            seed,
            report: Report::default(),
        };
        campaign.workers = (0..WORKERS).map(|worker| campaign.start_worker(worker)).collect();
        campaign
    }

    fn start_worker(&self, worker: u64) -> TestClient {
        let rack = u16::try_from(worker % 2).expect("a small number");
        let path = self.path.display().to_string();
        let (worker, seed) = (worker.to_string(), (self.seed * 1000 + worker).to_string());
        self.pool.client(rack, &["swaps", &path, &worker, &seed])
    }

    fn play(&mut self, number: usize, round: Round) {
        self.ledger.next_turn();
        self.ledger.set_pause(false);
        self.wait_for_work(number, round);
        let came = self.wait_for(round.moment);
        self.report.moments += usize::from(came);
        let start = Instant::now();
        self.strike(round);
        let away = start.elapsed();
        self.wait_for_work(number, round);
        self.ledger.set_pause(true);
        let rests = || (0..WORKERS).all(|worker| self.ledger.rests(worker));
        wait_until(&format!("the workers rest after round {number}: {round}"), PATIENCE, rests);
        wait_until(&format!("no swap is left after round {number}: {round}"), PATIENCE, || {
            self.atlas.is_at_rest()
        });
        self.check(number, round, away);
    }

    /// Waits until every worker has done something: whoever was hit, all go on.
    fn wait_for_work(&self, number: usize, round: Round) {
        let before: Vec<u64> = (0..WORKERS).map(|worker| self.ledger.operations(worker)).collect();
        wait_until(&format!("all go on in round {number}: {round}"), PATIENCE, || {
            (0..WORKERS)
                .zip(&before)
                .all(|(worker, before)| self.ledger.operations(worker) >= before + OPERATIONS)
        });
    }

    /// Whether the moment in a swap came.
    fn wait_for(&self, moment: Moment) -> bool {
        match moment {
            Moment::After(time) => {
                std::thread::sleep(time);
                false
            }
            Moment::In { rack, phase, asked } => {
                let start = Instant::now();
                while start.elapsed() < MOMENT {
                    if self.atlas.is_in(rack, phase, asked) {
                        return true;
                    }
                    std::hint::spin_loop();
                }
                false
            }
        }
    }

    fn strike(&mut self, round: Round) {
        match round.blow {
            Blow::Kill(away) => {
                match round.victim {
                    Victim::Daemon(rack) => self.pool.kill_daemon(rack),
                    Victim::MetadataServer => {
                        self.pool.cluster.metadata().kill().expect("a process to kill");
                    }
                    Victim::Worker(worker) => self.kill_worker(worker),
                }
                std::thread::sleep(away);
                match round.victim {
                    Victim::Daemon(rack) => self.pool.restart_daemon(rack),
                    Victim::MetadataServer => {
                        self.pool.cluster.restart_metadata().expect("it starts again");
                    }
                    Victim::Worker(worker) => {
                        self.workers[index(worker)] = self.start_worker(worker);
                    }
                }
            }
            Blow::Stop(away) => {
                self.signal(round.victim, Signal::SIGSTOP);
                std::thread::sleep(away);
                self.signal(round.victim, Signal::SIGCONT);
            }
        }
    }

    /// Kills a worker and waits until its daemon has taken everything back: what the worker had
    /// under way may be carried out until then, after which the next one may contradict it.
    fn kill_worker(&mut self, worker: u64) {
        self.workers[index(worker)].kill();
        let rack = u16::try_from(worker % 2).expect("a small number");
        // The other workers of the rack, and the one that looks.
        let others = index(WORKERS / 2);
        wait_until("the killed worker's file is gone", PATIENCE, || {
            census::client_files(&self.pool, rack) <= others
        });
    }

    fn signal(&mut self, victim: Victim, signal: Signal) {
        match victim {
            Victim::Daemon(rack) => {
                let daemon = self.pool.cluster.daemon(RackId(rack)).expect("a daemon");
                daemon.signal(signal).expect("a process to signal");
            }
            Victim::MetadataServer => {
                self.pool.cluster.metadata().signal(signal).expect("a process to signal");
            }
            Victim::Worker(worker) => self.workers[index(worker)].signal(signal),
        }
    }

    /// What must hold while everybody rests.
    fn check(&mut self, number: usize, round: Round, away: Duration) {
        let mut problems = self.atlas.problems();
        for worker in 0..WORKERS {
            if self.ledger.wrongs(worker) > 0 {
                problems.push(format!("worker {worker} read what can't be"));
            }
            let longest = self.ledger.take_longest(worker);
            self.report.longest = self.report.longest.max(longest);
            if longest > STATED + away {
                problems.push(format!("an operation of worker {worker} took {longest:?}"));
            }
        }
        for (rack, looker) in self.lookers.iter().enumerate() {
            for object in 0..OBJECTS {
                problems.extend(
                    self.look_at(looker, object).map(|what| format!("rack {rack}: {what}")),
                );
            }
        }
        let seed = self.seed;
        let of_round = |problem| format!("seed {seed}, round {number}, {round}: {problem}");
        self.report.problems.extend(problems.into_iter().map(of_round));
    }

    /// What is wrong with an object.
    fn look_at(&self, pool: &Pool, object: u64) -> Option<String> {
        let mut bytes = vec![0; index(OBJECT)];
        // On a busy machine a rack's heartbeat may be late, and the other takes it for dead.
        let read = wait_for("an object is read", PATIENCE, || {
            let read = pool.read(self.objects[index(object)], &mut bytes);
            (!read.as_ref().is_err_and(worker::is_expected)).then_some(read)
        });
        if let Err(error) = read {
            return Some(format!("object {object}: {error}"));
        }
        let word = |at: u64| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index(at)..index(at) + 8]);
            u64::from_le_bytes(word)
        };
        for worker in 0..WORKERS {
            let pair = self.ledger.written(worker, object);
            let number = worker::number_of(worker, object, word(worker::place(worker)));
            if !number.is_some_and(|number| (pair.second..=pair.first).contains(&number)) {
                return Some(format!("object {object}, word {worker}: {number:?}, {pair:?}"));
            }
        }
        let (sum, pair) = (word(worker::place(WORKERS)), self.ledger.additions(object));
        let range = pair.first..=pair.first + pair.second;
        (!range.contains(&sum)).then(|| format!("object {object}: {sum} added, {pair:?}"))
    }

    fn end(mut self) -> Report {
        for worker in 0..WORKERS {
            self.report.operations += self.ledger.operations(worker);
        }
        self.report
    }
}
