//! Rounds of `WATCH`, `MULTI` and `EXEC` on service instances of two racks, some of which are
//! killed. Every acknowledged transaction must have been executed exactly once, and every reader
//! must see all of its effects or none.

use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::pool::TestPool;
use crate::service::{Answer, Service, Wire};
use rackpool_testing::wait::{TIMEOUT, wait_for};

/// Clients that raise the counter, half of them at each instance.
const WORKERS: usize = 4;
/// Fields that the hash has from the beginning, so that it is a large one.
const FIELDS: usize = 400;
/// Fields of each worker for the numbers of its last rounds. After a lost answer the worker reads
/// the field to learn whether the round was executed.
const NUMBERS: u64 = 64;

/// Results of a campaign.
#[derive(Debug, Default)]
pub struct Report {
    /// `EXEC`s that were acknowledged.
    pub acknowledged: u64,
    /// `EXEC`s that were executed although their answers were lost.
    pub unacknowledged: u64,
    /// `EXEC`s that were refused because the watched key had changed.
    pub refused: u64,
    /// Instances that were killed.
    pub kills: u64,
    /// Consistent reads of all counters.
    pub looks: u64,
    /// Violations that were found.
    pub problems: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, unacknowledged, refused, kills, looks, problems } = self;
        write!(
            f,
            "{acknowledged} EXECs acknowledged, {unacknowledged} done without an answer, {refused} \
             refused, {kills} instances killed, {looks} looks, {} problems",
            problems.len()
        )?;
        problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Counters that workers, readers and the killing thread share.
#[derive(Debug, Default)]
struct Counts {
    acknowledged: AtomicU64,
    unacknowledged: AtomicU64,
    refused: AtomicU64,
    looks: AtomicU64,
    ended: AtomicBool,
    problems: Mutex<Vec<String>>,
}

impl Counts {
    fn done(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed) + self.unacknowledged.load(Ordering::Relaxed)
    }

    fn has_problems(&self) -> bool {
        !self.problems.lock().expect("nobody panics with it").is_empty()
    }

    fn problem(&self, text: String) {
        self.problems.lock().expect("nobody panics with it").push(text);
    }
}

/// Connects to an instance; retries while the instance is being killed and restarted.
fn connect(socket: &Path) -> Wire {
    wait_for("an instance that answers", TIMEOUT, || {
        let mut wire = Wire::try_open(socket).ok()?;
        wire.try_ask(&["PING"]).ok().map(|_| wire)
    })
}

fn number(answer: &Answer) -> Option<u64> {
    match answer {
        Answer::Bulk(bytes) => String::from_utf8_lossy(bytes).parse().ok(),
        Answer::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Executes `count` transactions and kills an instance after each `kill_every` of them; with 0,
/// never.
#[must_use]
pub fn run(count: u64, kill_every: u64) -> Report {
    let pool = TestPool::start(64 << 20, 256 << 10);
    pool.wait_until_racks_meet();
    let mut services = [0, 1].map(|rack| Service::start(&pool, rack, &["--threads", "2"]));
    let mut wire = services[0].wire();
    assert_eq!(wire.ask(&["MSET", "count", "0", "copy", "0"]), Answer::ok());
    for field in 0..FIELDS {
        wire.ask(&["HSET", "large", &format!("f{field}"), &"v".repeat(40)]);
    }
    wire.ask(&["HSET", "large", "count", "0"]);
    let sockets = [0, 1].map(|at: usize| services[at].socket.clone());
    let counts = Counts::default();
    let mut kills = 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (socket, counts) = (&sockets[worker % 2], &counts);
                scope.spawn(move || work(worker, socket, count, counts))
            })
            .collect();
        for socket in &sockets {
            let counts = &counts;
            scope.spawn(move || look(socket, counts));
        }
        let mut next = kill_every;
        while workers.iter().any(|worker| !worker.is_finished()) {
            if kill_every != 0 && counts.done() >= next && next < count {
                let service = &mut services[usize::from(kills % 2 == 1)];
                service.kill();
                service.restart();
                kills += 1;
                next += kill_every;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        counts.ended.store(true, Ordering::Relaxed);
    });
    let total = counts.done();
    for socket in &sockets {
        let mut wire = connect(socket);
        let all = [
            wire.ask(&["GET", "count"]),
            wire.ask(&["GET", "copy"]),
            wire.ask(&["HGET", "large", "count"]),
        ];
        if all.iter().any(|answer| number(answer) != Some(total)) {
            counts.problem(format!("{total} changes were made, and the counters are {all:?}"));
        }
    }
    Report {
        acknowledged: counts.acknowledged.into_inner(),
        unacknowledged: counts.unacknowledged.into_inner(),
        refused: counts.refused.into_inner(),
        kills,
        looks: counts.looks.into_inner(),
        problems: counts.problems.into_inner().unwrap_or_default(),
    }
}

/// Raises all counters in one `EXEC`, repeatedly.
fn work(worker: usize, socket: &Path, count: u64, counts: &Counts) {
    let mut wire = connect(socket);
    let mut round = 0;
    while counts.done() < count && !counts.has_problems() {
        round += 1;
        let (field, value) = (format!("{worker}:{}", round % NUMBERS), round.to_string());
        loop {
            match raise(&mut wire, &field, &value) {
                Ok(Some(true)) => {
                    counts.acknowledged.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Ok(Some(false)) => {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Ok(None) => {
                    counts.problem(format!("worker {worker} got an answer that makes no sense"));
                    return;
                }
                Err(_) => {}
            }
            // The answer was lost. The worker's field tells whether the transaction was executed.
            wire = connect(socket);
            match wire.try_ask(&["HGET", "large", &field]) {
                Ok(answer) if number(&answer) == Some(round) => {
                    counts.unacknowledged.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Ok(_) => {}
                Err(_) => wire = connect(socket),
            }
        }
    }
}

/// One round. Returns whether the transaction was executed; `None` for a malformed answer.
fn raise(wire: &mut Wire, field: &str, value: &str) -> std::io::Result<Option<bool>> {
    wire.try_ask(&["WATCH", "count"])?;
    let Some(count) = number(&wire.try_ask(&["GET", "count"])?) else { return Ok(None) };
    for words in [
        &["MULTI"][..],
        &["SET", "count", &(count + 1).to_string()],
        &["INCR", "copy"],
        &["HINCRBY", "large", "count", "1"],
        &["HSET", "large", field, value],
    ] {
        wire.try_ask(words)?;
    }
    let next = Some(count + 1);
    Ok(match wire.try_ask(&["EXEC"])? {
        Answer::Null => Some(false),
        Answer::Array(all)
            if all.len() == 4 && number(&all[1]) == next && number(&all[2]) == next =>
        {
            Some(true)
        }
        _ => None,
    })
}

/// Reads all counters in one `EXEC`, and with one `MGET`.
fn look(socket: &Path, counts: &Counts) {
    let mut wire = connect(socket);
    while !counts.ended.load(Ordering::Relaxed) && !counts.has_problems() {
        match look_once(&mut wire) {
            Ok(Ok(())) => {
                counts.looks.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Err(torn)) => counts.problem(torn),
            Err(_) => wire = connect(socket),
        }
    }
}

fn look_once(wire: &mut Wire) -> std::io::Result<Result<(), String>> {
    for words in [&["MULTI"][..], &["GET", "count"], &["GET", "copy"], &["HGET", "large", "count"]]
    {
        wire.try_ask(words)?;
    }
    for answer in [wire.try_ask(&["EXEC"])?, wire.try_ask(&["MGET", "count", "copy"])?] {
        let Answer::Array(all) = &answer else { return Ok(Err(format!("{answer:?}"))) };
        if all.iter().any(|one| number(one).is_none() || number(one) != number(&all[0])) {
            return Ok(Err(format!("not of one moment: {all:?}")));
        }
    }
    Ok(Ok(()))
}
