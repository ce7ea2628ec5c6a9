//! Faults and their rates: each seed has its own.

use rackpool_proto::planted_bugs::Bugs;

use crate::link::ServerLink;
use crate::message::Node;
use crate::rng::Rng;
use crate::rules::{CLIENTS, FLIGHT, MICRO, MILLI, RACKS, STORM};
use crate::world::{Event, RackNode, World};

#[derive(Clone, Debug)]
pub(crate) struct Weather {
    /// Messages lost, in percent.
    pub(crate) loss: u64,
    /// Messages duplicated, in percent.
    pub(crate) double: u64,
    /// Messages and operations that are delayed, in percent.
    pub(crate) slow: u64,
    /// Client steps after which the client is stopped, in percent.
    pub(crate) stops: u64,
    /// Client operations that read, in percent.
    pub(crate) reads: u64,
    /// Client operations on names, in percent.
    pub(crate) roots: u64,
    /// The longest pause of a rack or the metadata server, and the longest cut of a link, in ns.
    longest_pause: u64,
    /// The longest stop of a client, in ns.
    pub(crate) longest_stop: u64,
    /// The kinds of faults in this seed.
    kinds: Vec<Kind>,
    /// The mean time between two faults, in ns.
    pause: u64,
    /// The time when the last rack joins.
    pub(crate) joins: u64,
    /// The rack whose records are damaged.
    pub(crate) scribbled: Option<usize>,
    /// One-way cuts: from, to, until.
    cuts: Vec<(Node, Node, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    RackDies,
    /// Within its next actions.
    RackDiesAtAStep,
    ServerDies,
    ClientDies,
    RackPauses,
    ServerPauses,
    LinkIsCut,
    ConnectionBreaks,
    DiskFails,
    /// Once, for a long time.
    RackLeaves,
}

const KINDS: [Kind; 10] = [
    Kind::RackDies,
    Kind::RackDiesAtAStep,
    Kind::ServerDies,
    Kind::ClientDies,
    Kind::RackPauses,
    Kind::ServerPauses,
    Kind::LinkIsCut,
    Kind::ConnectionBreaks,
    Kind::DiskFails,
    Kind::RackLeaves,
];

impl Weather {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut often = |chance: u64, most: u64| {
            if rng.percent(chance) { rng.within(0..most) } else { 0 }
        };
        let (loss, double) = (often(60, 12), often(60, 12));
        let (slow, stops) = (often(70, 8), often(60, 3));
        let kinds = KINDS.into_iter().filter(|_| rng.percent(45)).collect();
        let pause = rng.within(10 * MILLI..200 * MILLI);
        let scribbled = rng.percent(25).then(|| rng.below(RACKS));
        let joins = if rng.percent(25) { rng.within(MILLI..STORM / 2) } else { 0 };
        let reads = if rng.percent(40) { rng.within(88..99) } else { 40 };
        let roots = if rng.percent(50) { rng.within(1..12) } else { 3 };
        // Most pauses are shorter than a lease; in some worlds they are longer.
        let longest_pause = if rng.percent(25) { 1_200 * MILLI } else { 150 * MILLI };
        let longest_stop = if rng.percent(15) { 800 * MILLI } else { 90 * MILLI };
        Self {
            loss,
            double,
            slow,
            stops,
            reads,
            roots,
            longest_pause,
            longest_stop,
            kinds,
            pause,
            joins,
            scribbled,
            cuts: Vec::new(),
        }
    }

    pub(crate) fn delay(&self, rng: &mut Rng) -> u64 {
        if rng.percent(self.slow) {
            rng.within(MICRO..80 * MILLI)
        } else {
            rng.within(5 * MICRO..300 * MICRO)
        }
    }

    pub(crate) fn is_cut(&self, now: u64, from: Node, to: Node) -> bool {
        self.cut_until(now, from, to).is_some()
    }

    /// Returns when the link works again, if it is cut.
    pub(crate) fn cut_until(&self, now: u64, from: Node, to: Node) -> Option<u64> {
        let cuts = self.cuts.iter().filter(|(a, b, until)| (*a, *b) == (from, to) && now < *until);
        cuts.map(|(.., until)| *until).max()
    }
}

impl<B> RackNode<B> {
    /// Stops the rack. A stop of a stopped rack continues the first one, for events wait for the
    /// later end of both.
    fn stop(&mut self, now: u64, until: u64) {
        self.paused_until = until;
        match self.pauses.last_mut() {
            Some((_, end)) if now <= *end => *end = until.max(*end),
            _ => self.pauses.push((now, until)),
        }
    }
}

impl<B: Bugs> World<B> {
    pub(crate) fn fault(&mut self) {
        if self.now >= STORM || self.weather.kinds.is_empty() {
            return;
        }
        let kind = self.weather.kinds[self.rng.below(self.weather.kinds.len())];
        let rack = self.rng.below(RACKS);
        let until = self.now + self.pause();
        match kind {
            Kind::RackDies => self.crash_rack(rack),
            Kind::RackDiesAtAStep => self.racks[rack].fuse = Some(self.rng.within(0..60)),
            Kind::ServerDies => self.crash_server(),
            Kind::ClientDies => {
                let client = self.rng.below(CLIENTS);
                self.crash_client(client);
            }
            Kind::RackPauses => self.racks[rack].stop(self.now, until),
            Kind::ServerPauses => self.server.paused_until = until,
            Kind::LinkIsCut => {
                let mut node = || match self.rng.below(RACKS + 1) {
                    RACKS => Node::Server,
                    rack => Node::Rack(rack),
                };
                let cut = (node(), node(), until);
                self.weather.cuts.push(cut);
            }
            Kind::ConnectionBreaks => {
                let link = self.racks[rack].link.as_ref();
                if let Some(connection) = link.and_then(ServerLink::connection) {
                    self.break_connection(connection);
                }
            }
            Kind::DiskFails => self.server.disk_fails = true,
            Kind::RackLeaves => {
                self.weather.kinds.retain(|kind| *kind != Kind::RackLeaves);
                let wait = self.rng.within(200 * MILLI..1500 * MILLI);
                let leaves = self.rng.percent(50);
                self.stop_rack(rack, wait, leaves);
            }
        }
        let wait = self.rng.within(0..2 * self.weather.pause);
        self.after(wait, Event::Fault);
    }

    /// Draws the length of a pause, in ns.
    fn pause(&mut self) -> u64 {
        let longest = if self.rng.percent(30) { self.weather.longest_pause } else { 150 * MILLI };
        self.rng.within(MILLI..longest)
    }

    /// Ends all faults: dead processes are started again, and no message is lost any more.
    pub(crate) fn clear_up(&mut self) {
        self.weather = Weather {
            loss: 0,
            double: 0,
            slow: 0,
            stops: 0,
            reads: self.weather.reads,
            roots: 0,
            longest_pause: MILLI,
            longest_stop: MILLI,
            kinds: Vec::new(),
            pause: FLIGHT,
            joins: 0,
            scribbled: None,
            cuts: Vec::new(),
        };
        self.server.disk_fails = false;
        self.server.paused_until = 0;
        self.start(Node::Server);
        for rack in 0..RACKS {
            self.racks[rack].fuse = None;
            self.racks[rack].paused_until = 0;
            self.start(Node::Rack(rack));
        }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_proto::planted_bugs::Sound;

    use super::*;

    /// Regression of check C11: a rack that was stopped again while it was stopped counted as
    /// stopped for the longer of both times.
    #[test]
    fn a_stop_of_a_stopped_rack_is_no_second_one() {
        let mut world = World::new(0, Sound);
        let rack = &mut world.racks[0];
        for (now, until) in [(10, 20), (15, 30), (25, 28), (40, 50)] {
            rack.stop(now, until);
            assert_eq!(rack.paused_until, until);
        }
        assert_eq!(rack.pauses, [(10, 30), (40, 50)]);
    }
}
