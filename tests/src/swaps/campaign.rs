//! Rounds: pages swap, a process is killed or stopped, and then all promises are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use rackpool_client::{FreeError, GlobalAddr, Pool};
use rackpool_cluster::ClusterOptions;
use rackpool_model::PageId;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::absence::Absence;
use super::atlas::Atlas;
use super::frames::Frames;
use super::ledger::{Ledger, OBJECTS, WORKERS};
use super::object;
use super::report::Report;
use super::round::{KillPoint, LEASE, Round};
use super::trouble::{TROUBLES, Trouble};
use super::worker::{OBJECT, ROOT};
use crate::census;
use crate::client::TestClient;
use crate::pool::{PAGE, TestPool};
use rackpool_testing::wait::{TIMEOUT, try_wait_for, wait_for, wait_until};

/// Successful operations, some of each kind, that each worker must complete between a blow and the
/// end of the round.
const OPERATIONS: u64 = 50;
/// Frames of a rack with plenty of room, and of one that is nearly full: together two such racks
/// have a few free frames.
const MANY: u64 = 32;
const FEW: u64 = 11;

/// A pool whose pages swap as fast as possible, and its workers.
pub(super) struct Campaign {
    pub(super) pool: TestPool,
    pub(super) atlas: Atlas,
    ledger: Ledger,
    path: PathBuf,
    pub(super) workers: Vec<TestClient>,
    /// A client in each rack that checks objects.
    lookers: Vec<Pool>,
    objects: Vec<GlobalAddr>,
    /// The table of the objects' addresses, which the workers read.
    table: GlobalAddr,
    /// The pages that are in use all the time.
    pages: BTreeSet<PageId>,
    /// The objects in them, with the bytes that each takes.
    in_use: BTreeMap<GlobalAddr, u64>,
    seed: u64,
    pub(super) report: Report,
}

/// Runs `rounds` rounds. With an odd seed the pool has plenty of room: pages move to free frames,
/// and racks keep copies. With an even seed it is nearly full, so that pages are exchanged.
#[must_use]
pub fn run(rounds: usize, seed: u64) -> Report {
    let mut campaign = Campaign::start(seed);
    let mut random = SmallRng::seed_from_u64(seed);
    for number in 0..rounds {
        let round = Round::draw(&mut random);
        let before = campaign.atlas.frames().homes();
        let problems = campaign.play(round);
        let after = campaign.atlas.frames().homes();
        campaign.report.moved += after
            .iter()
            .filter(|(page, home)| before.get(page).is_some_and(|b| b != *home))
            .count();
        campaign.report.rounds += 1;
        if !problems.is_empty() {
            let of_round = |problem| format!("seed {seed}, round {number}, {round}: {problem}");
            campaign.report.problems.extend(problems.into_iter().map(of_round));
            campaign.pool.show_logs();
            return campaign.report();
        }
    }
    campaign.end()
}

/// The rack of which a worker is a client.
pub(super) fn rack_of(worker: u64) -> u16 {
    u16::from(worker % 2 == 1)
}

/// A small number as an index.
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

fn options(options: &mut ClusterOptions, frames: u64) {
    options.memory = frames * PAGE;
    options.lease_ms = u64::try_from(LEASE.as_millis()).expect("a short time");
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
        let is_full = seed.is_multiple_of(2);
        let pool = TestPool::with(|all| options(all, if is_full { FEW } else { MANY }));
        pool.wait_until_racks_meet();
        let lookers = vec![pool.open(0), pool.open(1)];
        let objects: Vec<GlobalAddr> = (0..OBJECTS)
            .map(|object| lookers[index(object % 2)].alloc(OBJECT).expect("room"))
            .collect();
        // On a busy machine a rack's heartbeat may be late even before the first round.
        let write = |addr: GlobalAddr, bytes: &[u8]| {
            let written = wait_for("an object is written", TIMEOUT, || {
                let written = lookers[0].write(addr, bytes);
                let is_late = |error| matches!(Trouble::from(error), Trouble::Unavailable(_));
                (!written.as_ref().is_err_and(is_late)).then_some(written)
            });
            written.expect("an access");
        };
        for addr in &objects {
            write(*addr, &vec![0; index(OBJECT)]);
        }
        let table = lookers[0].alloc(OBJECTS * 8).expect("room");
        let bytes: Vec<u8> = objects.iter().flat_map(|addr| addr.raw().to_le_bytes()).collect();
        write(table, &bytes);
        wait_until("the table has its name", TIMEOUT, || {
            let named = lookers[0].set_root(ROOT, None, Some(table));
            named.is_ok_and(|root| root.addr == Some(table))
        });
        let path = pool.dir().join("ledger");
        let ledger = Ledger::create(&path).expect("a new file");
        let mut campaign = Self {
            atlas: Atlas::of(&pool),
            pool,
            ledger,
            path,
            workers: Vec::new(),
            lookers,
            objects,
            table,
            pages: BTreeSet::new(),
            in_use: BTreeMap::new(),
            seed,
            report: Report::default(),
        };
        let frames = campaign.frames_at_rest().expect("a pool that nobody uses");
        let free = frames.free(0) + frames.free(1);
        assert!(
            !is_full || (2..=5).contains(&free),
            "{free} frames are free: no page can change places"
        );
        campaign.pages = frames.homes().into_keys().collect();
        campaign.in_use = census::objects(&campaign.pool);
        campaign.workers = (0..WORKERS).map(|worker| campaign.start_worker(worker)).collect();
        campaign
    }

    pub(super) fn start_worker(&self, worker: u64) -> TestClient {
        let rack = rack_of(worker);
        let path = self.path.display().to_string();
        let (worker, seed) = (worker.to_string(), (self.seed * 1000 + worker).to_string());
        self.pool.client(rack, &["swaps", &path, &worker, &seed])
    }

    /// Plays a round; returns the problems found.
    fn play(&mut self, round: Round) -> Vec<String> {
        let mut absence = Absence::begin(&self.pool);
        self.ledger.next_turn();
        self.ledger.set_pause(false);
        if let Err(problem) = self.wait_for_work() {
            return vec![format!("before the blow {problem}")];
        }
        let (came, held) = self.wait_for(round.at);
        if let KillPoint::In { part, .. } = round.at
            && came
        {
            self.report.moments += 1;
            self.report.coverage.chosen(part);
        }
        let all_away = self.strike(round, held);
        all_away.iter().for_each(|away| absence.note(away));
        let away = all_away.iter().map(|away| away.time).max().unwrap_or_default();
        self.report.long_rounds += usize::from(away > LEASE);
        if let Err(problem) = self.wait_for_work() {
            return vec![problem];
        }
        self.ledger.set_pause(true);
        let rest = || (0..WORKERS).all(|worker| self.ledger.rests(worker)).then_some(());
        if try_wait_for(TIMEOUT, rest).is_none() {
            return vec!["a worker does not come to rest".into()];
        }
        if !absence.is_over(&self.pool) {
            return vec!["a rack that was taken for dead does not come back".into()];
        }
        let mut problems = match self.frames_at_rest() {
            Ok(frames) => self.frame_problems(&frames),
            Err(problem) => vec![problem],
        };
        problems.extend(self.worker_problems(&absence, away));
        problems.extend(self.object_problems(&absence));
        self.report.late_heartbeats += absence.late_heartbeats();
        problems
    }

    /// Waits until every kind of operation of each worker succeeds again after the blow.
    fn wait_for_work(&self) -> Result<(), String> {
        let successes = |worker| self.ledger.successes(worker);
        let before: Vec<_> = (0..WORKERS).map(successes).collect();
        let goes_on = |(worker, before): (u64, &[u64; 3])| {
            let now = successes(worker);
            let all = now.iter().sum::<u64>() >= before.iter().sum::<u64>() + OPERATIONS;
            all && now.iter().zip(before).all(|(now, before)| now > before)
        };
        let has_ended = |worker| self.ledger.has_failed(worker, Trouble::Other);
        let done = try_wait_for(TIMEOUT, || {
            let all = (0..WORKERS).zip(&before).all(goes_on);
            (all || (0..WORKERS).any(has_ended)).then_some(())
        });
        match (0..WORKERS).find(|worker| has_ended(*worker)) {
            Some(worker) => Err(format!("worker {worker} failed as nothing may, see above")),
            None if done.is_none() => {
                let now: Vec<_> = (0..WORKERS).map(successes).collect();
                Err(format!("not all go on: {now:?} operations, {before:?} before"))
            }
            None => Ok(()),
        }
    }

    fn frames_at_rest(&self) -> Result<Frames, String> {
        try_wait_for(TIMEOUT, || self.atlas.frames_at_rest()).ok_or_else(|| {
            let parts = [0, 1].map(|rack| self.atlas.parts(rack).collect::<Vec<_>>());
            let frames = self.atlas.frames();
            let problems = frames.problems(&self.pages);
            format!("no rest: the racks' parts in swaps are {parts:?}; {}", problems.join("; "))
        })
    }

    /// Problems of frames at rest, and of the daemons' metrics about them.
    fn frame_problems(&self, frames: &Frames) -> Vec<String> {
        let mut problems = frames.problems(&self.pages);
        // A swap that was requested before the workers paused may still be under way.
        let mut counted = [None; 2];
        let all_fits = try_wait_for(TIMEOUT, || {
            let now = census::objects(&self.pool);
            let frames = self.atlas.frames_at_rest()?;
            let counts = |rack| Some((self.pool.try_status(rack)?.free_frames, frames.free(rack)));
            counted = [counts(0), counts(1)];
            let fits = |(said, are): (u32, usize)| usize::try_from(said) == Ok(are);
            let counts_fit = counted.into_iter().all(|counts| counts.is_some_and(fits));
            (counts_fit && now == self.in_use).then_some(())
        });
        if all_fits.is_none() {
            let now = census::objects(&self.pool);
            let lost = self.in_use.keys().filter(|addr| !now.contains_key(addr)).count();
            let nobodys = now.keys().filter(|addr| !self.in_use.contains_key(addr)).count();
            problems.push(format!(
                "{lost} objects are lost, {nobodys} are nobody's; free frames as daemons say and as they are: {counted:?}"
            ));
        }
        problems
    }

    /// Problems that the workers have noted: wrong values, forbidden failures, operations that took
    /// too long.
    fn worker_problems(&mut self, absence: &Absence, away: Duration) -> Vec<String> {
        let mut problems = Vec::new();
        for worker in 0..WORKERS {
            if self.ledger.wrongs(worker) > 0 {
                problems.push(format!("worker {worker} read what can't be"));
            }
            let longest = self.ledger.take_longest(worker);
            self.report.took(longest, away, away > LEASE);
            if longest > Round::stated(away) {
                let stated = Round::stated(away);
                problems.push(format!(
                    "an operation of worker {worker} took {longest:?}, {stated:?} are stated"
                ));
            }
            for trouble in TROUBLES {
                let times = self.ledger.take_failures(worker, trouble);
                if times > 0 && !absence.allows(rack_of(worker), trouble) {
                    problems
                        .push(format!("{times} operations of worker {worker} failed: {trouble:?}"));
                } else if times > 0 {
                    *self.report.failures.entry(trouble).or_default() += times;
                }
            }
        }
        problems
    }

    /// Problems of the objects, as read and changed from both racks.
    fn object_problems(&self, absence: &Absence) -> Vec<String> {
        let all = [0, 1].into_iter().flat_map(|rack| (0..OBJECTS).map(move |o| (rack, o)));
        all.filter_map(|(rack, number)| {
            let found = self.look_at(rack, number, absence);
            found.map(|what| format!("object {number}, seen in rack {rack}: {what}"))
        })
        .collect()
    }

    fn look_at(&self, rack: u16, number: u64, absence: &Absence) -> Option<String> {
        let (pool, addr) = (&self.lookers[usize::from(rack)], self.objects[index(number)]);
        let mut bytes = vec![0; index(OBJECT)];
        let looked = try_wait_for(TIMEOUT, || {
            let looked = pool.read(addr, &mut bytes).and_then(|()| pool.fetch_and_add(addr, 0));
            let may_fail = |error| absence.allows(rack, Trouble::from(error));
            (!looked.as_ref().is_err_and(may_fail)).then_some(looked)
        });
        match looked {
            None => Some("it can't be reached any more".into()),
            Some(Err(error)) => Some(error.to_string()),
            Some(Ok(_)) => object::problem(&self.ledger, number, &bytes),
        }
    }

    fn report(mut self) -> Report {
        for worker in 0..WORKERS {
            let own = self.ledger.successes(worker);
            self.report.operations.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
        self.report
    }

    /// Allocates all frames of an empty pool: a frame that can't be allocated has leaked, whatever
    /// its page word says.
    fn missing_frames(&self) -> Option<String> {
        let pool = self.pool.open(0);
        let all = self.atlas.frames().len();
        let mut taken = 0;
        // No frame is free before leases that a killed daemon may have granted have expired.
        let _ = try_wait_for(TIMEOUT, || {
            while taken < all && pool.alloc(PAGE).is_ok() {
                taken += 1;
            }
            (taken == all).then_some(())
        });
        (taken < all).then(|| format!("{taken} of {all} frames can be allocated again"))
    }

    /// Frees everything: afterwards nothing may be in use, and every frame must be available.
    fn end(mut self) -> Report {
        for worker in &mut self.workers {
            worker.kill();
        }
        let absence = Absence::begin(&self.pool);
        let mut problems = Vec::new();
        for addr in self.objects.iter().chain([&self.table]) {
            let freed = try_wait_for(TIMEOUT, || {
                let freed = self.lookers[0].free(*addr);
                let may_fail = |error: &FreeError| matches!(error, FreeError::Access(error) if absence.allows(0, error.into()));
                (!freed.as_ref().is_err_and(may_fail)).then_some(freed)
            });
            if !matches!(freed, Some(Ok(()))) {
                problems.push(format!("{addr} can't be freed: {freed:?}"));
            }
        }
        self.lookers.drain(..).for_each(Pool::close);
        let nothing = || census::objects(&self.pool).is_empty().then_some(());
        if try_wait_for(TIMEOUT, nothing).is_none() {
            problems.push(format!("{} objects are left", census::objects(&self.pool).len()));
        }
        problems.extend(self.missing_frames());
        if problems.is_empty() {
            self.report.emptied += 1;
        } else {
            let of_end = |problem| format!("seed {}, at the end: {problem}", self.seed);
            self.report.problems.extend(problems.into_iter().map(of_end));
            self.pool.show_logs();
        }
        self.report()
    }
}
