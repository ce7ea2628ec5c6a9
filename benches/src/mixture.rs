//! Figure 19 of the paper: requests within the rack mixed with requests to another rack, through
//! one ring buffer for everything and through two (section 5.2).
//!
//! **The baseline** is the single ring buffer of the paper's figure 5: messages of any length, one
//! after the other, for both kinds. The start of a message is known only when the one before is
//! complete. The daemon therefore handles the message at the front, waits for the fabric if the
//! message is for another rack, and only then goes on to the next.
//!
//! **A second baseline** goes beyond the paper and has no limit: the daemon passes messages to the
//! fabric without waiting, and answers them in the ring's order, in which their space is freed. It
//! shows the gain over the best possible use of one ring.
//!
//! **Two rings** are rackpool's own, with the daemon's order of work: a plain ring for requests
//! within the rack, and a ring whose entries point into a data ring for the others, which run
//! concurrently and are answered as they complete.
//!
//! All three use the same parts (rackpool's), the same total memory, and the same load: threads
//! that think for an exponentially distributed time, send a request, and wait for the answer, as
//! the synchronous calls of a client do. The think time is such that the fabric blocks the baseline
//! for about 40 % of the time, far from saturation. A thread on one core plays the clients'
//! threads; the daemon has the other core. The fabric has a latency, and a line on which messages
//! are sent one after the other.
//!
//! Times count from the point at which a thread is ready to send, so they include waiting for room.
//! The limits are for all requests together, as in the paper; local requests are also shown alone.
//! Both loops read the clock in each turn. When a loop lost its core for longer than any step here
//! takes, all requests under way are left out in all three cases, including those that the daemon
//! answered before it could know that it had been descheduled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::data::{DataBlock, DataRing};
use rackpool_ring::request::{ARGUMENTS, Request, RequestRing, RingEntry, RingHeader};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::pin_self;
use crate::measure::{median, percentile};
use crate::table::Table;

/// Requests of one run.
const REQUESTS: usize = 200_000;
const ROUNDS: usize = 9;
/// Threads of the clients, and their mean think time.
const THREADS: usize = 16;
const THINK: Duration = Duration::from_micros(18);
/// One in this number of requests is for another rack.
const REMOTE_ONE_IN: u32 = 5;
/// Bytes of a request to another rack; the fabric's latency; the time that these bytes take on its
/// line (100 Gbit/s).
const REMOTE_BYTES: u64 = 4096;
const FABRIC: Duration = Duration::from_micros(2);
const LINE: Duration = Duration::from_nanos(REMOTE_BYTES * 8 / 100);
/// A turn of a loop that takes longer was interrupted by other work on the core.
const INTERRUPTED: Duration = Duration::from_micros(5);
/// Bytes of a message without data: an entry.
const MESSAGE: u64 = 64;
const ENTRIES: usize = 64;
/// Bytes of all rings together, and bytes of a ring of entries.
const MEMORY: u64 = 128 << 10;
const RING: u64 = ENTRIES as u64 * MESSAGE;

/// The kind of rings, and the daemon's order of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// One ring; the daemon completes each message before the next.
    One,
    /// One ring; answers in the ring's order.
    OneInOrder,
    /// Two rings.
    Two,
}

const NAMES: [&str; 3] = ["p50", "p99", "p999"];
const PARTS: [usize; 3] = [500, 990, 999];
/// The largest gains in the paper's figure 19, in percent.
const GAINS: [f64; 3] = [21.7, 30.9, 51.5];

/// Percentiles in nanoseconds of all requests and of those within the rack; the share left out.
pub(crate) struct Percentiles {
    pub(crate) all: [f64; 3],
    local: [f64; 3],
    left_out: f64,
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section(
        "requests within and out of the rack mixed: lower with two rings than with one by (figure \
         19)",
    );
    // In turn, so that all meet the same load of the host.
    let ways = [Way::One, Way::OneInOrder, Way::Two];
    let rounds: Vec<[Percentiles; 3]> =
        (0..ROUNDS as u64).map(|seed| ways.map(|way| mix(way, seed))).collect();
    for (baseline, what) in ["", " (in order)"].into_iter().enumerate() {
        for (i, (name, gain)) in NAMES.into_iter().zip(GAINS).enumerate() {
            let (lower, detail) = compare(&rounds, baseline, |figures| figures.all[i]);
            let name = format!("{name} of all{what}");
            if baseline == 0 {
                table.at_least(&name, lower, gain, "%", &detail);
            } else {
                table.figure(&name, lower, "%", &detail);
            }
        }
        for (i, name) in NAMES.into_iter().enumerate() {
            let (lower, detail) = compare(&rounds, baseline, |figures| figures.local[i]);
            table.figure(&format!("{name} of local ones{what}"), lower, "%", &detail);
        }
    }
    let left_out = rounds.iter().flatten().map(|figures| figures.left_out).collect();
    table.figure("left out: a core was taken away", median(left_out), "%", "of the requests");
    Ok(())
}

/// By how many percent a percentile is lower with two rings: the median over the rounds.
fn compare(
    rounds: &[[Percentiles; 3]],
    baseline: usize,
    of: impl Fn(&Percentiles) -> f64,
) -> (f64, String) {
    let middle = |of: &dyn Fn(&[Percentiles; 3]) -> f64| median(rounds.iter().map(of).collect());
    let lower = middle(&|round| (1.0 - of(&round[2]) / of(&round[baseline])) * 100.0);
    let one = middle(&|round| of(&round[baseline]) / 1e3);
    let two = middle(&|round| of(&round[2]) / 1e3);
    (lower, format!("{two:.2} us against {one:.2} us"))
}

struct Rings {
    local: (RingHeader, Vec<RingEntry>),
    remote: (RingHeader, Vec<RingEntry>),
    data: DataRing,
    cells: Vec<CallCell>,
    way: Way,
    done: AtomicBool,
}

impl Rings {
    fn new(way: Way) -> Self {
        let ring = || (RingHeader::default(), (0..ENTRIES).map(|_| RingEntry::default()).collect());
        // With one ring an entry stands for the message in the data ring, so all memory is the data
        // ring's.
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

/// An answered request.
struct Answered {
    is_remote: bool,
    from: Instant,
    done: Instant,
}

/// An interval in which a loop may have been without its core.
type Away = (Instant, Instant);

pub(crate) fn mix(way: Way, seed: u64) -> Percentiles {
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

/// The intervals of both loops, sorted and with overlapping ones merged.
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

/// Returns true if an interval overlaps the request.
fn meets(away: &[Away], one: &Answered) -> bool {
    let next = away.partition_point(|(_, end)| *end < one.from);
    away.get(next).is_some_and(|(start, _)| *start <= one.done)
}

/// The fabric: computes when an operation that is posted now completes.
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

/// The daemon. It completes local requests at once, and others when the fabric has completed them.
fn serve(rings: &Rings) -> Vec<Away> {
    pin_self(1).expect("core 1");
    let mut fabric = Fabric::default();
    // Requests taken and not yet answered; local ones only where they must wait.
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

/// A request that a client thread is ready to send.
#[derive(Clone, Copy)]
struct Wish {
    from: Instant,
    is_remote: bool,
}

struct Call {
    number: u32,
    block: Option<DataBlock>,
}

/// The clients' threads: returns their requests, and the intervals in which their loop was without
/// its core.
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
        arguments: [block.as_ref().map_or(0, DataBlock::offset); ARGUMENTS],
    };
    if rings.ring(wish.is_remote).push(&[request]).is_err() {
        block.into_iter().for_each(|block| rings.data.give_back(block));
        return None;
    }
    Some(Call { number, block })
}
