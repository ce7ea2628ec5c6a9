//! Waits for the chosen time of a round, then kills or stops its victim.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_proto::swap::SwapRules;

use super::atlas::{Part, Phase};
use super::campaign::{Campaign, index, rack_of};
use super::ledger::WORKERS;
use super::round::{Blow, KillPoint, Round, Victim};
use crate::census;
use rackpool_testing::wait::{TIMEOUT, wait_until};

/// The longest wait for a chosen phase; after it the victim is hit anyway.
const SLICE: Duration = Duration::from_millis(300);
/// The same for a phase of an aborted swap, where the swap must be made to abort first.
const SURRENDER: Duration = Duration::from_millis(500);
/// The most time beyond its grace period that a rack may take to abort a swap.
const SLACK: Duration = Duration::from_millis(50);

/// A process that was killed or stopped, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) who: Victim,
    pub(super) was_killed: bool,
    pub(super) time: Duration,
}

/// A daemon that was stopped so that the other daemon aborts a swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    rack: u16,
    since: Instant,
}

/// Polls the condition without a pause; returns true if it held before the deadline.
fn look_until(deadline: Instant, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::hint::spin_loop();
    }
}

impl Campaign {
    /// Waits for the chosen time. Returns whether the chosen phase of a swap was reached, and the
    /// daemon that is stopped for it.
    pub(super) fn wait_for(&mut self, at: KillPoint) -> (bool, Option<Held>) {
        match at {
            KillPoint::After(time) => {
                std::thread::sleep(time);
                (false, None)
            }
            KillPoint::In { rack, part } if part.phase == Phase::GivenUp => {
                self.have_given_up(rack, part)
            }
            KillPoint::In { rack, part } => {
                let came = look_until(Instant::now() + SLICE, || self.atlas.is_in(rack, part));
                (came, None)
            }
        }
    }

    /// Makes a rack abort a swap: stops the other rack while its page is being copied. The aborting
    /// rack keeps its record until the copy can no longer write into the frame. Without a copy
    /// under way it erases the record as soon as the swap is aborted.
    fn have_given_up(&mut self, rack: u16, wanted: Part) -> (bool, Option<Held>) {
        let deadline = Instant::now() + SURRENDER;
        let open = Part { phase: Phase::Open, ..wanted };
        let other = 1 - rack;
        loop {
            let is_open = || self.atlas.is_in(rack, open) || self.atlas.is_in(rack, wanted);
            if !look_until(deadline, is_open) {
                return (false, None);
            }
            let held = Held { rack: other, since: Instant::now() };
            self.pool.stop_daemon(other);
            let timeout = held.since + SwapRules::DEFAULT.grace + SLACK;
            look_until(timeout, || !self.atlas.is_in(rack, open));
            if self.atlas.is_in(rack, wanted) {
                return (true, Some(held));
            }
            self.pool.resume_daemon(other);
        }
    }

    /// Kills or stops the victim; returns every process that was away.
    pub(super) fn strike(&mut self, round: Round, held: Option<Held>) -> Vec<Away> {
        let start = Instant::now();
        let was_killed = matches!(round.blow, Blow::Kill(_));
        match was_killed {
            true => self.kill(round.victim),
            false => self.stop(round.victim),
        }
        if let Victim::Daemon(rack) = round.victim {
            for part in self.atlas.parts(rack) {
                match was_killed {
                    true => self.report.coverage.killed(part),
                    false => self.report.coverage.stopped(part),
                }
            }
        }
        let mut away = Vec::new();
        if let Some(Held { rack, since }) = held {
            let who = Victim::Daemon(rack);
            if who != round.victim {
                self.pool.resume_daemon(rack);
            }
            away.push(Away { who, was_killed: false, time: since.elapsed() });
        }
        if let (Victim::Worker(worker), true) = (round.victim, was_killed) {
            self.wait_until_taken_back(worker);
        }
        std::thread::sleep(round.blow.away());
        match was_killed {
            true => self.start_again(round.victim),
            false => self.resume(round.victim),
        }
        let since = held.filter(|held| Victim::Daemon(held.rack) == round.victim);
        let since = since.map_or(start, |held| held.since);
        away.push(Away { who: round.victim, was_killed, time: since.elapsed() });
        away
    }

    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Daemon(rack) => self.pool.kill_daemon(rack),
            Victim::MetadataServer => {
                self.pool.cluster.metadata().kill().expect("a process to kill");
            }
            Victim::Worker(worker) => self.workers[index(worker)].kill(),
        }
    }

    fn start_again(&mut self, victim: Victim) {
        match victim {
            Victim::Daemon(rack) => self.pool.restart_daemon(rack),
            Victim::MetadataServer => {
                self.pool.cluster.restart_metadata().expect("it starts again");
            }
            Victim::Worker(worker) => self.workers[index(worker)] = self.start_worker(worker),
        }
    }

    /// Waits until the daemon of a killed worker has reclaimed everything. Until then operations
    /// that the worker had under way may be executed, and would contradict the ledger of the next
    /// worker.
    fn wait_until_taken_back(&self, worker: u64) {
        // The other workers of the rack, and the looking client.
        let others = index(WORKERS / 2);
        wait_until("the killed worker's file is gone", TIMEOUT, || {
            census::client_files(&self.pool, rack_of(worker)) <= others
        });
    }

    fn stop(&mut self, victim: Victim) {
        match victim {
            Victim::Daemon(rack) => self.pool.stop_daemon(rack),
            Victim::MetadataServer => self.signal_metadata(Signal::SIGSTOP),
            Victim::Worker(worker) => self.workers[index(worker)].signal(Signal::SIGSTOP),
        }
    }

    fn resume(&mut self, victim: Victim) {
        match victim {
            Victim::Daemon(rack) => self.pool.resume_daemon(rack),
            Victim::MetadataServer => self.signal_metadata(Signal::SIGCONT),
            Victim::Worker(worker) => self.workers[index(worker)].signal(Signal::SIGCONT),
        }
    }

    fn signal_metadata(&mut self, signal: Signal) {
        self.pool.cluster.metadata().signal(signal).expect("a process to signal");
    }
}
