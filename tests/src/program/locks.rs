//! Takes locks, and keeps them until it is told to unlock, or killed.

use std::time::Duration;

use anyhow::{Context, bail};
use rackpool_client::{AccessError, GlobalAddr, Pool, ReadGuard, WriteGuard};

use super::{Arguments, say};
use crate::lock_rounds::{PAIR, counters};

/// The guards that the program holds.
#[derive(Default)]
pub(super) struct Guards<'a> {
    readers: Vec<ReadGuard<'a>>,
    writers: Vec<WriteGuard<'a>>,
}

impl<'a> Guards<'a> {
    pub(super) fn answer(
        &mut self,
        pool: &'a Pool,
        command: &str,
        arguments: &mut Arguments,
    ) -> anyhow::Result<String> {
        let recovered = match command {
            "write-lock" => {
                let (addr, timeout) = lock_arguments(arguments)?;
                let guard = pool.write_lock_within(addr, PAIR, timeout)?;
                let recovered = guard.recovered();
                self.writers.push(guard);
                recovered
            }
            "read-lock" => {
                let (addr, timeout) = lock_arguments(arguments)?;
                let guard = pool.read_lock_within(addr, PAIR, timeout)?;
                let recovered = guard.recovered();
                self.readers.push(guard);
                recovered
            }
            "write-locked" => {
                let (addr, value) = (arguments.addr("ADDR")?, arguments.number("VALUE")?);
                let guard = self.writers.last().context("no lock is held")?;
                guard.write(addr, &value.to_le_bytes())?;
                return Ok("ok".into());
            }
            "unlock" => {
                match (self.writers.pop(), self.readers.pop()) {
                    (Some(writer), _) => writer.unlock()?,
                    (None, Some(reader)) => reader.unlock()?,
                    (None, None) => bail!("no lock is held"),
                }
                return Ok("ok".into());
            }
            other => bail!("there is no request '{other}'"),
        };
        Ok(if recovered { "recovered" } else { "locked" }.into())
    }
}

fn lock_arguments(arguments: &mut Arguments) -> anyhow::Result<(GlobalAddr, Duration)> {
    let (addr, timeout) = (arguments.addr("ADDR")?, arguments.number("TIMEOUT_MS")?);
    Ok((addr, Duration::from_millis(timeout)))
}

/// `add-locked ADDR ROUNDS FIRST`: adds 1 to both counters of a pair in each round, under its lock,
/// and prints the sum: before it unlocks if FIRST is 1, else after it has unlocked without an
/// error. A pair that is unequal is made equal if a holder has ended, and ends the program
/// otherwise.
pub(super) fn add_locked(pool: &Pool, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (addr, rounds) = (arguments.addr("ADDR")?, arguments.number("ROUNDS")?);
    let is_first = arguments.number("FIRST")? == 1;
    for _ in 0..rounds {
        let guard = pool.write_lock(addr, PAIR)?;
        let mut bytes = [0; PAIR];
        guard.read(addr, &mut bytes)?;
        let [first, second] = counters(&bytes);
        if first != second && !guard.recovered() {
            bail!("the counters are {first} and {second}, and no holder has ended");
        }
        guard.write(addr, &(first + 1).to_le_bytes())?;
        guard.write(addr.add(8)?, &(first + 1).to_le_bytes())?;
        let sum = format!("{}", first + 1);
        if is_first {
            say(&sum)?;
        }
        match guard.unlock() {
            Ok(()) if !is_first => say(&sum)?,
            // The daemon was killed.
            Ok(()) | Err(AccessError::LockLost(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
