//! Many client processes on two cores: their total throughput must not fall below that of two.
//!
//! All clients send requests between the same two points in time; each sends a request, waits for
//! its answer and sends the next. Only completed requests between these points count, whenever a
//! client gets a core: of sixteen clients on a core, each waits tens of milliseconds for its first
//! turn, and for the turn in which it notices the end.
//!
//! The limit for round trips applies to the setup that docs/operating.md recommends for hosts whose
//! clients send requests all the time: the daemon's poll loop has a core of its own, and the
//! clients keep off it. In the other rounds, which have no limit, nothing is bound: all threads
//! share all cores as the kernel schedules them. A comparison of two bound clients with two unbound
//! ones shows the cost of binding. Reads of objects of the other rack are measured unbound, since
//! two poll loops and the clients share two cores.

pub(crate) mod racks;

use crate::cpu;
use crate::measure::median;
use crate::table::Table;

use racks::Racks;
pub use racks::be_client;

/// The argument with which this program is one of the clients.
pub const ARGUMENT: &str = "--client";
/// Numbers of clients; the first is the reference for the others.
const CLIENTS: [usize; 4] = [2, 4, 8, 16];
const ROUNDS: usize = 5;
/// The tolerance of the limit. Two runs of the same clients differ by more than this.
const NOISE: f64 = 0.02;

/// Operations a second of all clients together, for each number of clients.
type Rates = [f64; CLIENTS.len()];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section(
        "clients in processes of their own, two cores (of round trips one is the daemon's): all \
         together against two",
    );
    round_trips(table)?;
    let racks = Racks::start(2, None)?;
    let rounds = (0..ROUNDS).map(|_| rates(&racks)).collect::<anyhow::Result<Vec<_>>>()?;
    racks.stop()?;
    rate_rows(table, "64 B of the other rack", &rounds);
    Ok(())
}

fn round_trips(table: &mut Table) -> anyhow::Result<()> {
    // The last core: the first one handles most of a host's interrupts.
    let cores = cpu::usable()?;
    let [_, .., core] = cores[..] else {
        table.not_measured("a core for the daemon's poll loop: this needs two cores");
        return Ok(());
    };
    let (bound, unbound) = (Racks::start(1, Some(core))?, Racks::start(1, None)?);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(rates(&bound)?);
        without.push(rates(&unbound)?);
    }
    bound.stop()?;
    unbound.stop()?;
    rate_rows(table, "round trips", &with);
    for (i, count) in CLIENTS.into_iter().enumerate() {
        let (ratio, detail) = compare(&with, i, &without, 0);
        let name = format!("for comparison: {count} of these, 2 unbound");
        table.figure(&name, ratio, "x", &detail);
    }
    for (i, count) in CLIENTS.into_iter().enumerate().skip(1) {
        let (ratio, detail) = compare(&without, i, &without, 0);
        let name = format!("for comparison: {count} unbound, 2 unbound");
        table.figure(&name, ratio, "x", &detail);
    }
    Ok(())
}

/// Compares each number of clients with two clients.
fn rate_rows(table: &mut Table, what: &str, rounds: &[Rates]) {
    for (i, count) in CLIENTS.into_iter().enumerate().skip(1) {
        let (ratio, detail) = compare(rounds, i, rounds, 0);
        table.at_least(&format!("{what}: {count} clients"), ratio, 1.0 - NOISE, "x", &detail);
    }
}

/// One round: each number of clients in turn.
fn rates(racks: &Racks) -> anyhow::Result<Rates> {
    let mut rates = [0.0; CLIENTS.len()];
    for (rate, count) in rates.iter_mut().zip(CLIENTS) {
        *rate = racks.rate(count)?;
    }
    Ok(rates)
}

/// The median over the rounds of the ratio of two rates, and a text with the medians of both.
pub(crate) fn compare<const N: usize>(
    rounds: &[[f64; N]],
    i: usize,
    others: &[[f64; N]],
    j: usize,
) -> (f64, String) {
    let of = |rounds: &[[f64; N]], i: usize| median(rounds.iter().map(|round| round[i]).collect());
    let pairs = rounds.iter().zip(others);
    let ratio = median(pairs.map(|(round, other)| round[i] / other[j]).collect());
    let (rate, other) = (of(rounds, i) / 1e3, of(others, j) / 1e3);
    (ratio, format!("{rate:.0} k/s against {other:.0} k/s"))
}
