//! A daemon that is killed inside its data plane thread, and started again.

mod errand;

use std::fmt;
use std::time::{Duration, Instant};

use rackpool_client::{FreeError, GlobalAddr, Pool};

use self::errand::{Client, Done, ERRANDS, is_away};
use super::fill;
use super::log::Log;
use super::plan::{Coverage, Key, Plan, Task};
use super::symbols::Symbols;
use super::tracer::TracedThread;
use crate::census::{self, Census};
use crate::client::{TestClient, program};
use crate::contents;
use crate::pool::TestPool;
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_for, wait_until};

/// The most instructions of a request that are executed one by one.
const LONGEST: usize = 30_000;
/// When rack 0 has fewer free pages, the campaign waits: a restarted daemon frees none for a lease.
const FEW: u32 = 150;

/// Results of a campaign without findings; a campaign with a finding panics instead.
#[derive(Clone, Debug)]
pub struct DaemonReport {
    /// Daemons that were killed.
    pub kills: usize,
    /// Distinct instructions of the product before which a daemon was killed.
    pub distinct: usize,
    /// The coverage of each request.
    pub coverage: Vec<Coverage>,
    /// Duration of the campaign.
    pub took: Duration,
    /// Set if the kills were at chosen instructions.
    pub traced: bool,
}

impl fmt::Display for DaemonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", super::plan::Table(&self.coverage))?;
        write!(
            f,
            "{} daemons killed at {} distinct instructions in {:.1?}",
            self.kills, self.distinct, self.took
        )
    }
}

/// The client that needs the daemon while it is killed.
enum Driver {
    Thread(Client),
    /// A killed client: its daemon reclaims what it held, except these objects.
    Gone(Vec<GlobalAddr>),
}

struct Scene {
    plan: Plan,
    symbols: Symbols,
    link: [GlobalAddr; 2],
    before: Census,
    log: Log,
    fillers: Vec<GlobalAddr>,
    traced: bool,
    pool: TestPool,
}

/// Kills daemons in `rounds` rounds; fails at the first finding.
#[must_use]
pub fn run(rounds: usize, seed: u64) -> DaemonReport {
    let began = Instant::now();
    let mut scene = Scene::new(seed);
    for _ in 0..rounds {
        scene.round();
    }
    let (distinct, coverage) = (scene.plan.distinct(), scene.plan.coverage().collect());
    let traced = scene.traced;
    scene.drain();
    DaemonReport { kills: rounds, distinct, coverage, took: began.elapsed(), traced }
}

impl Scene {
    fn new(seed: u64) -> Self {
        let pool = TestPool::with(|options| {
            // The pages of a killed daemon do not become free for a lease and its flight; this
            // memory suffices for some hundred rounds.
            options.memory = 64 << 20;
            // A restarted daemon reclaims nothing for a lease time.
            options.lease_ms = 1000;
        });
        pool.wait_until_racks_meet();
        let racks = [pool.open(0), pool.open(1)];
        let link = [0, 1].map(|rack: usize| {
            let link = racks[rack].alloc(16).expect("an empty rack");
            racks[rack].write(link, &[0; 16]).expect("a fresh object");
            link
        });
        let fillers = fill(&racks[1]);
        racks.into_iter().for_each(Pool::close);
        let before = Census::of(&pool);
        let keys = ERRANDS.map(|(name, _, daemon)| (name, daemon));
        Self {
            plan: Plan::new(seed, keys),
            symbols: Symbols::of(&program("rackpool-daemon")),
            link,
            before,
            log: Log::default(),
            fillers,
            traced: true,
            pool,
        }
    }

    fn round(&mut self) {
        // A restarted rack serves requests for memory only after the others have heard of it.
        self.pool.wait_until_racks_serve();
        if self.pool.status(0).free_frames < FEW {
            let free = || self.pool.status(0).free_frames > 2 * FEW;
            wait_until("pages become free", TIMEOUT, free);
        }
        let (key, task) = self.plan.next(|_| true);
        let errand = ERRANDS.iter().find(|(name, _, daemon)| (*name, *daemon) == key);
        let (name, rack, daemon) = *errand.expect("a known errand");
        let process = self.pool.cluster.daemon(rackpool_client::RackId(daemon)).expect("it").id();
        let is_reclaim = name.ends_with("reclaim");
        let client = (!is_reclaim).then(|| Client::prepare(&self.pool, name, rack));
        let dying = is_reclaim.then(|| self.make_dying_client(rack));
        let thread = TracedThread::stop(process, "data-plane");
        let driver = match (client, dying) {
            (Some(client), _) => {
                client.go();
                Driver::Thread(client)
            }
            (None, Some((mut client, left))) => {
                client.kill();
                Driver::Gone(left)
            }
            (None, None) => return,
        };
        let place = match thread {
            Some(thread) => self.kill_at(key, task, thread, &driver),
            None => {
                self.traced = false;
                std::thread::sleep(Duration::from_micros(match task {
                    Task::Kill(target) => target.step as u64,
                    _ => 100,
                }));
                "at some time".into()
            }
        };
        let what = format!("{name} from rack {rack}, daemon {daemon} killed {place}");
        self.pool.kill_daemon(daemon);
        self.pool.restart_daemon(daemon);
        self.check(driver, rack, &what);
    }

    /// Executes instructions of the daemon up to the chosen one and kills it; returns a description
    /// of the place.
    fn kill_at(
        &mut self,
        key: Key,
        task: Task,
        mut thread: TracedThread,
        driver: &Driver,
    ) -> String {
        let (pool, before) = (&self.pool, &self.before);
        let mut asked = 0_u32;
        let mut is_over = || match driver {
            Driver::Thread(client) => client.is_done(),
            Driver::Gone(_) => {
                asked += 1;
                asked.is_multiple_of(64) && before.newcomers_are_gone(pool)
            }
        };
        let wanted = match task {
            Task::Kill(target) => target.step,
            _ => LONGEST,
        };
        let mut at = thread.at();
        let mut trace = vec![at];
        let mut is_awake = true;
        while is_awake && trace.len() <= wanted && !is_over() {
            is_awake = thread.step(&mut is_over);
            if is_awake {
                at = thread.at();
                trace.push(at);
            }
        }
        if task == Task::Measure {
            self.plan.measured(key, &trace, &self.symbols);
        }
        // The number of instructions before a given one differs from run to run, and the measured
        // run ends at an arbitrary point. The kill is therefore before the next instruction at
        // which no daemon was killed yet.
        let mut steps = trace.len() - 1;
        let most = steps + LONGEST;
        while is_awake && !self.plan.is_new(at, &self.symbols) && steps < most {
            is_awake = thread.step(&mut is_over);
            if is_awake {
                at = thread.at();
                steps += 1;
            }
        }
        if is_awake {
            self.plan.killed(key, at, &self.symbols);
        }
        thread.kill_process();
        let function = self.symbols.function(at).unwrap_or("elsewhere");
        format!("after {steps} steps before {at:x}, {function}")
    }

    /// A client with a full cache, a reservation, and a reservation that has replaced another one.
    /// Also returns the objects that stay in use after its death.
    fn make_dying_client(&self, rack: u16) -> (TestClient, Vec<GlobalAddr>) {
        let mut client = self.pool.client(rack, &["reservations"]);
        let link = self.link[usize::from(rack)].raw();
        let kept = client.alloc(64);
        let reservations =
            [0; 3].map(|_| crate::client::parse_addr(&client.ask("reservation 128")));
        let old = reservations[0].raw();
        assert_eq!(client.ask(&format!("publish 0 {link:x} 0 0")), "0");
        assert_eq!(client.ask(&format!("publish 1 {link:x} {old:x} {old:x}")), format!("{old:x}"));
        (client, vec![kept, reservations[1]])
    }

    fn check(&mut self, driver: Driver, rack: u16, what: &str) {
        let own = match driver {
            Driver::Thread(client) => {
                let Done { objects, counter, pool } = client.done();
                let own = pool.unwrap_or_else(|| self.pool.open(rack));
                for (addr, tags) in objects {
                    check_contents(&own, addr, &tags, what);
                    free(&own, addr);
                }
                if let Some(counter) = counter {
                    let mut word = [0; 8];
                    read(&own, counter, &mut word);
                    assert!(u64::from_le_bytes(word) <= 1, "added twice: {what}");
                    free(&own, counter);
                }
                own
            }
            Driver::Gone(left) => {
                let gone = || self.before.newcomers_are_gone(&self.pool);
                wait_until(what, TIMEOUT, gone);
                let own = self.pool.open(0);
                let link = self.link[usize::from(rack)];
                let mut word = [0; 8];
                read(&own, link, &mut word);
                assert_eq!(u64::from_le_bytes(word), left[1].raw(), "{what}");
                own.write(link, &[0; 8]).expect("an object in use");
                left.into_iter().for_each(|addr| free(&own, addr));
                own
            }
        };
        own.close();
        let gone = || self.before.newcomers_are_gone(&self.pool);
        wait_until(what, TIMEOUT, gone);
        // Objects that an unavailable rack must free may still be on their way.
        let as_before = || census::objects(&self.pool) == self.before.objects;
        if !try_wait_until(TIMEOUT, as_before) {
            let found = census::objects(&self.pool);
            let more = found.keys().filter(|addr| !self.before.objects.contains_key(addr));
            let more: Vec<_> = more.collect();
            let less = self.before.objects.keys().filter(|addr| !found.contains_key(addr));
            panic!("leaked: {more:?}, lost: {:?}: {what}", less.collect::<Vec<_>>());
        }
        let odd = self.log.odd(&self.pool);
        assert!(odd.is_empty(), "{odd:#?}: {what}");
    }

    fn drain(self) {
        let own = self.pool.open(0);
        self.link.iter().chain(&self.fillers).for_each(|addr| free(&own, *addr));
        own.close();
        self.pool.wait_allocated("everything is freed", TIMEOUT, [0, 0]);
        census::wait_until_frames_are_free(&self.pool);
    }
}

fn read(own: &Pool, addr: GlobalAddr, into: &mut [u8]) {
    wait_for("an object can be read", TIMEOUT, || match own.read(addr, into) {
        Ok(()) => Some(()),
        Err(error) if is_away(&error) => None,
        Err(error) => panic!("{addr}: {error}"),
    });
}

fn free(own: &Pool, addr: GlobalAddr) {
    wait_for("an object can be freed", TIMEOUT, || match own.free(addr) {
        Ok(()) => Some(()),
        Err(FreeError::Access(error)) if is_away(&error) => None,
        Err(error) => panic!("{addr}: {error}"),
    });
}

fn check_contents(own: &Pool, addr: GlobalAddr, tags: &[u64], what: &str) {
    if !tags.is_empty() {
        let mut found = [0; 64];
        read(own, addr, &mut found);
        assert_eq!(contents::difference_from_all(tags, &found), None, "{addr}: {what}");
    }
}
