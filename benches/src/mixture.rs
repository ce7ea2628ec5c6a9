//! The paper's figure 19: requests that stay in the rack mixed with ones that leave it, through
//! one ring buffer for everything and through two (section 5.2).
//!
//! **The baseline** is the single ring buffer of the paper's figure 5: messages of any length, one
//! after the other, for both kinds. Where a message starts is known only when the one before is
//! complete, so the daemon handles the one at the front, for as long as the fabric takes if it
//! leaves the rack, and goes on to the next when it is done.
//!
//! **A second baseline** is cleverer than the paper's and not judged: the daemon passes messages on
//! to the fabric one after the other without waiting, and answers them in the ring's order, in
//! which their space comes free. It shows what is left of the gain against the best that one ring
//! can do.
//!
//! **Two rings**: the ones rackpool uses, and its daemon's order of things: a plain one for
//! requests within the rack; entries that point into a data ring for the others, which go on side
//! by side and are answered when they are done.
//!
//! All three are made of the same parts (rackpool's), have the same bytes of memory in all, and the
//! same load: threads that think for a while (exponentially distributed), ask, and wait for the
//! answer, as the synchronous calls of a client do. Think times are such that the fabric stands in
//! the way of the baseline for about 40 % of the time: far from its limit. A thread on one core
//! plays the clients' threads, the daemon has the other core. The fabric has a latency, and a line
//! that one message after the other is sent over.
//!
//! Times count from the moment a thread wants to ask: waiting for room is part of them. The limits
//! are for all requests together, as in the paper; local ones by themselves are shown as well.
//! Both loops look at the clock in each turn: when one of them lost its core for longer than
//! anything here takes, what was under way is left out, whichever rings it went through: also what
//! the daemon answered before it could know that it had been away.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::data::{Block, DataRing};
use rackpool_ring::request::{ARGUMENTS, Entry, Request, RequestRing, RingHeader};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::pin_self;
use crate::measure::{median, percentile};
use crate::table::Table;

/// Requests of one run.
const REQUESTS: usize = 200_000;
const ROUNDS: usize = 9;
/// Threads of the clients, and how long they think on average.
const THREADS: usize = 16;
const THINK: Duration = Duration::from_micros(18);
/// One request in so many leaves the rack.
const REMOTE_ONE_IN: u32 = 5;
/// Bytes that a request leaving the rack carries; the fabric's latency, and how long they take on
/// its line (100 Gbit/s).
const REMOTE_BYTES: u64 = 4096;
const FABRIC: Duration = Duration::from_micros(2);
const LINE: Duration = Duration::from_nanos(REMOTE_BYTES * 8 / 100);
/// A turn of a loop that takes longer was interrupted by something else on the core.
const INTERRUPTED: Duration = Duration::from_micros(5);
/// Bytes of a message without any: an entry.
const MESSAGE: u64 = 64;
const ENTRIES: usize = 64;
/// Bytes of all rings together, and what entries of a ring take of it.
const MEMORY: u64 = 128 << 10;
const RING: u64 = ENTRIES as u64 * MESSAGE;

/// Who shares what, and how the daemon goes through it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One ring, one message after the other.
    One,
    /// One ring, answers in its order.
    OneInOrder,
    /// Two rings.
    Two,
}

const NAMES: [&str; 3] = ["p50", "p99", "p999"];
const PARTS: [usize; 3] = [500, 990, 999];
/// What the paper's figure 19 gains at most, in percent.
const GAINS: [f64; 3] = [21.7, 30.9, 51.5];

/// Percentiles in nanoseconds: of all requests, and of those within the rack.
struct Percentiles {
    all: [f64; 3],
    local: [f64; 3],
    left_out: f64,
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("requests within and out of the rack mixed: two rings against one (figure 19)");
    // In turn, so that all meet the same neighbours.
    let ways = [Way::One, Way::OneInOrder, Way::Two];
    let rounds: Vec<[Percentiles; 3]> =
        (0..ROUNDS as u64).map(|seed| ways.map(|way| mix(way, seed))).collect();
    for (baseline, what) in ["", " (in order)"].into_iter().enumerate() {
        for (i, (name, gain)) in NAMES.into_iter().zip(GAINS).enumerate() {
            let (lower, detail) = compare(&rounds, baseline, |figures| figures.all[i]);
            let name = format!("{name} of all lower by{what}");
            if baseline == 0 {
                table.at_least(&name, lower, gain, "%", &detail);
            } else {
                table.figure(&name, lower, "%", &detail);
            }
        }
        for (i, name) in NAMES.into_iter().enumerate() {
            let (lower, detail) = compare(&rounds, baseline, |figures| figures.local[i]);
            table.figure(&format!("{name} of local ones lower by{what}"), lower, "%", &detail);
        }
    }
    let left_out = rounds.iter().flatten().map(|figures| figures.left_out).collect();
    table.figure("left out: a core was taken away", median(left_out), "%", "of the requests");
    Ok(())
}

/// By how many percent a figure is lower with two rings, the median over the rounds.
fn compare(
    rounds: &[[Percentiles; 3]],
    baseline: usize,
    of: impl Fn(&Percentiles) -> f64,
) -> (f64, String) {
    let middle = |of: &dyn Fn(&[Percentiles; 3]) -> f64| median(rounds.iter().map(of).collect());
    let lower = middle(&|round| (1.0 - of(&round[2]) / of(&round[baseline])) * 100.0);
    let one = middle(&|round| of(&round[baseline]) / 1e3);
    let two = middle(&|round| of(&round[2]) / 1e3);
    (lower, format!("{one:.2} us with one ring, {two:.2} us with two"))
}

struct Rings {
    local: (RingHeader, Vec<Entry>),
    remote: (RingHeader, Vec<Entry>),
    data: DataRing,
    cells: Vec<CallCell>,
    way: Way,
    done: AtomicBool,
}

impl Rings {
    fn new(way: Way) -> Self {
        let ring = || (RingHeader::default(), (0..ENTRIES).map(|_| Entry::default()).collect());
        // With one ring an entry stands for the message in the data, which is all there is.
        let data = if way == Way::Two { MEMORY - 2 * RING } else { MEMORY };
        Self {
            local: ring(),
            remote: ring(),
            data: DataRing::new(data),
            cells: (0..THREADS).map(|_| CallCell::default()).collect(),
            way,
            done: AtomicBool::new(false),
        }
    }

    fn ring(&self, is_remote: bool) -> RequestRing<'_> {
        let ring = if is_remote || self.way != Way::Two { &self.remote } else { &self.local };
        RequestRing::new(&ring.0, &ring.1)
    }

    fn finish(&self, request: &Request) {
        let answer = Answer { status: 0, values: [0; VALUES] };
        self.cells[usize::from(request.cell)].finish(request.call, &answer);
    }
}

/// A request that was answered.
struct Answered {
    is_remote: bool,
    from: Instant,
    done: Instant,
}

/// From when to when a loop was away from its core, at most.
type Away = (Instant, Instant);

fn mix(way: Way, seed: u64) -> Percentiles {
    let rings = Rings::new(way);
    let (answered, away) = std::thread::scope(|scope| {
        let daemon = scope.spawn(|| serve(&rings));
        let (answered, mut away) =
            scope.spawn(|| ask(&rings, seed)).join().expect("the client does not panic");
        rings.done.store(true, Ordering::Release);
        away.extend(daemon.join().expect("the daemon does not panic"));
        (answered, joined(away))
    });
    let undisturbed: Vec<&Answered> = answered.iter().filter(|one| !meets(&away, one)).collect();
    let percentiles = |of: &dyn Fn(bool) -> bool| {
        let chosen = undisturbed.iter().filter(|one| of(one.is_remote));
        let mut chosen: Vec<f64> =
            chosen.map(|one| (one.done - one.from).as_secs_f64() * 1e9).collect();
        chosen.sort_by(f64::total_cmp);
        PARTS.map(|part| percentile(&chosen, part))
    };
    let left_out = answered.len() - undisturbed.len();
    Percentiles {
        all: percentiles(&|_| true),
        local: percentiles(&|is_remote| !is_remote),
        left_out: left_out as f64 / REQUESTS as f64 * 100.0,
    }
}

/// Those of both loops in their order, joined where they overlap.
fn joined(mut away: Vec<Away>) -> Vec<Away> {
    away.sort_unstable();
    let mut joined: Vec<Away> = Vec::new();
    for (start, end) in away {
        match joined.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Whether somebody was away while a request was under way.
fn meets(away: &[Away], one: &Answered) -> bool {
    let next = away.partition_point(|(_, end)| *end < one.from);
    away.get(next).is_some_and(|(start, _)| *start <= one.done)
}

/// The fabric: when what is sent now is done.
#[derive(Default)]
struct Fabric {
    line_free: Option<Instant>,
}

impl Fabric {
    fn send(&mut self) -> Instant {
        let now = Instant::now();
        let sent = self.line_free.map_or(now, |free| free.max(now)) + LINE;
        self.line_free = Some(sent);
        sent + FABRIC
    }
}

/// The daemon. A local request is done at once, another one when the fabric is done with it.
fn serve(rings: &Rings) -> Vec<Away> {
    pin_self(1).expect("core 1");
    let mut fabric = Fabric::default();
    // What was taken and is not answered yet; local ones only where they have to wait.
    let mut taken: VecDeque<(Option<Instant>, Request)> = VecDeque::new();
    let most = if rings.way == Way::One { 1 } else { 32 };
    let mut away = Vec::new();
    let mut turn = Instant::now();
    while !rings.done.load(Ordering::Acquire) {
        let now = Instant::now();
        let before = std::mem::replace(&mut turn, now);
        if now - before > INTERRUPTED {
            away.push((before, now));
        }
        if rings.way != Way::One || taken.is_empty() {
            for is_remote in [false, true] {
                rings.ring(is_remote).pop(most, |request| match request.code {
                    0 if rings.way == Way::Two => rings.finish(&request),
                    0 => taken.push_back((None, request)),
                    _ => taken.push_back((Some(fabric.send()), request)),
                });
            }
        }
        while let Some((due, request)) = taken.front()
            && due.is_none_or(|due| due <= now)
        {
            rings.finish(request);
            taken.pop_front();
        }
    }
    away
}

/// What a thread of the clients is about to ask.
#[derive(Clone, Copy)]
struct Wish {
    from: Instant,
    is_remote: bool,
}

struct Call {
    number: u32,
    block: Option<Block>,
}

/// The clients' threads: their requests, and when the threads were away.
fn ask(rings: &Rings, seed: u64) -> (Vec<Answered>, Vec<Away>) {
    pin_self(0).expect("core 0");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut answered, mut away) = (Vec::with_capacity(REQUESTS), Vec::new());
    let mut calls: Vec<Option<Call>> = (0..THREADS).map(|_| None).collect();
    let mut wish = |now: Instant| Wish {
        from: now + THINK.mul_f64(-rng.random_range(f64::MIN_POSITIVE..1.0).ln()),
        is_remote: rng.random_range(0..REMOTE_ONE_IN) == 0,
    };
    let mut wishes: Vec<Wish> = (0..THREADS).map(|_| wish(Instant::now())).collect();
    let mut number = 0_u32;
    let mut turn = Instant::now();
    while answered.len() < REQUESTS {
        let now = Instant::now();
        let before = std::mem::replace(&mut turn, now);
        if now - before > INTERRUPTED {
            away.push((before, now));
        }
        for thread in 0..THREADS {
            if let Some(call) = &calls[thread] {
                if rings.cells[thread].answer(call.number).is_none() {
                    continue;
                }
                let (now, Wish { from, is_remote }) = (Instant::now(), wishes[thread]);
                answered.push(Answered { is_remote, from, done: now });
                wishes[thread] = wish(now);
                if let Some(block) = calls[thread].take().and_then(|call| call.block) {
                    rings.data.give_back(block);
                }
            } else if wishes[thread].from <= now {
                number += 1;
                calls[thread] = post(rings, wishes[thread], thread, number);
            }
        }
    }
    (answered, away)
}

/// Posts a request; `None` while there is no room for it.
fn post(rings: &Rings, wish: Wish, thread: usize, number: u32) -> Option<Call> {
    let bytes = if wish.is_remote { MESSAGE + REMOTE_BYTES } else { MESSAGE };
    let needs_block = wish.is_remote || rings.way != Way::Two;
    let block = if needs_block { Some(rings.data.take(bytes)?) } else { None };
    let request = Request {
        code: u8::from(wish.is_remote),
        cell: u8::try_from(thread).expect("a few threads"),
        thread: 0,
        call: number,
        life: 0,
        arguments: [block.as_ref().map_or(0, Block::offset); ARGUMENTS],
    };
    if rings.ring(wish.is_remote).push(&[request]).is_err() {
        block.into_iter().for_each(|block| rings.data.give_back(block));
        return None;
    }
    Some(Call { number, block })
}
