//! `rackpool-test-client DIR RACK COMMAND [ARGUMENTS]`: a client that the tests can kill. Each line
//! goes to the standard output with one system call, so whatever was acknowledged before a kill has
//! been printed.

mod churn;
mod locks;
mod objects;
mod plasma;
mod reservations;
mod serve;
pub mod step;
pub mod store;
pub mod traffic;
mod work;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};

/// Prints a line at once, with one system call.
fn say(line: &str) -> anyhow::Result<()> {
    let mut bytes = Vec::with_capacity(line.len() + 1);
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    // The lock keeps the lines of threads apart; the buffer is flushed at the line's end.
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(())
}

/// The arguments of a command.
struct Arguments(std::vec::IntoIter<String>);

impl Arguments {
    fn text(&mut self, name: &str) -> anyhow::Result<String> {
        self.0.next().with_context(|| format!("{name} is missing"))
    }

    fn number(&mut self, name: &str) -> anyhow::Result<u64> {
        self.text(name)?.parse().with_context(|| format!("{name} is no number"))
    }

    fn addr(&mut self, name: &str) -> anyhow::Result<GlobalAddr> {
        let raw = u64::from_str_radix(&self.text(name)?, 16);
        Ok(GlobalAddr::from_raw(raw.with_context(|| format!("{name} is no address"))?))
    }
}

/// Runs the program.
pub fn run(arguments: Vec<String>) -> anyhow::Result<()> {
    let mut arguments = Arguments(arguments.into_iter());
    let dir = arguments.text("DIR")?;
    let rack = RackId(u16::try_from(arguments.number("RACK")?)?);
    let command = arguments.text("COMMAND")?;
    let options = ClientOptions::new(&dir, rack).exact_daemon(true);
    match command.as_str() {
        "step" => return step::step(dir.into(), options, &mut arguments),
        "plasma" => return plasma::plasma(&mut arguments),
        "work" => return work::work(&options, &mut arguments),
        "swaps" => return swaps(options, &mut arguments),
        _ => {}
    }
    let pool = Arc::new(Pool::open(options)?);
    match command.as_str() {
        "churn" => churn::churn(&pool, &mut arguments),
        "refill" => churn::refill(&pool, &mut arguments),
        "serve" => serve::serve(&pool),
        "objects" => objects::objects(&pool, &mut arguments),
        "remove-store" => objects::remove(&pool, &mut arguments),
        "reservations" => reservations::reservations(&pool),
        "mix" => reservations::mix(&pool, &mut arguments),
        "traffic" => traffic::traffic(&pool, &mut arguments),
        "add-locked" => locks::add_locked(&pool, &mut arguments),
        "write" => store::write(&pool, &mut arguments),
        "copy" => store::copy(&pool, &mut arguments),
        "add" => store::add(&pool, &mut arguments),
        "put" => store::put(&pool, &mut arguments),
        "count" => store::count(&pool, &mut arguments),
        other => bail!("there is no command '{other}'"),
    }
}

/// `swaps LEDGER WORKER SEED`: reads and writes words in pages that swap, and notes each operation
/// in the ledger.
fn swaps(options: ClientOptions, arguments: &mut Arguments) -> anyhow::Result<()> {
    let ledger = arguments.text("LEDGER")?;
    let (worker, seed) = (arguments.number("WORKER")?, arguments.number("SEED")?);
    crate::swaps::worker::work(options, ledger.as_ref(), worker, seed)
}
