//! Reservations that the tests make, publish and abandon; table operations without a pause.

use std::io::BufRead;
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_client::{GlobalAddr, Pool, PublishCas, PublishMode, Reservation};
use rackpool_kv::{KvError, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::store::value;
use super::{Arguments, say};

/// `reservations`: answers each line of the standard input with one line, until the input ends.
///
/// | request | does | answers |
/// |---|---|---|
/// | `alloc BYTES` | allocates an object | the address |
/// | `reservation BYTES` | makes the next reservation and writes its token | the address |
/// | `own BYTES EXTENTS` | as `reservation`, of a fixed object with extents | the address |
/// | `tombstone` | makes the next reservation, without an object | `ok` |
/// | `take PLACE OBJECT` | borrows an object as the next reservation | `ok`, or `no` |
/// | `publish N LINK EXPECTED REPLACED` | publishes reservation `N` | the link's earlier value |
/// | `compare N LINK EXPECTED REPLACED STAMP` | the same, if the stamp is right | the same |
/// | `settle N LINK EXPECTED REPLACED WORD` | then settles the link at `WORD` | the same |
/// | `finish N` | finishes the `N`th reservation | `ok` |
///
/// The link becomes the reservation's address, or the tombstone's token. Numbers after `N` are
/// hexadecimal.
pub(super) fn reservations(pool: &Arc<Pool>) -> anyhow::Result<()> {
    let mut reservations = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let words: Vec<String> = line?.split_whitespace().map(str::to_owned).collect();
        let answer = answer(pool, &mut reservations, &mut Arguments(words.into_iter()));
        say(&answer.unwrap_or_else(|error| format!("error: {error:#}")))?;
    }
    Ok(())
}

fn answer(
    pool: &Pool,
    reservations: &mut Vec<Option<Reservation>>,
    arguments: &mut Arguments,
) -> anyhow::Result<String> {
    let command = arguments.text("a request")?;
    Ok(match command.as_str() {
        "alloc" => format!("{:x}", pool.alloc(arguments.number("BYTES")?)?.raw()),
        "reservation" => {
            let reservation = pool.reserve(arguments.number("BYTES")?)?;
            pool.write(reservation.addr(), &reservation.token().to_le_bytes())?;
            let addr = reservation.addr().raw();
            reservations.push(Some(reservation));
            format!("{addr:x}")
        }
        "own" => {
            let head = pool.alloc_fixed(arguments.number("BYTES")?)?;
            pool.alloc_extents(head, arguments.number("EXTENTS")?)?;
            let reservation = pool.reserve_owned(head)?;
            pool.write(head, &reservation.token().to_le_bytes())?;
            reservations.push(Some(reservation));
            format!("{:x}", head.raw())
        }
        "tombstone" => {
            reservations.push(Some(pool.tombstone()?));
            "ok".into()
        }
        "take" => {
            let (place, object) = (arguments.addr("PLACE")?, arguments.addr("OBJECT")?);
            match pool.borrow(place, object)? {
                Some(reservation) => {
                    pool.write(reservation.addr(), &reservation.token().to_le_bytes())?;
                    reservations.push(Some(reservation));
                    "ok".into()
                }
                None => "no".into(),
            }
        }
        "publish" | "compare" | "settle" => {
            let index = usize::try_from(arguments.number("N")?)?;
            let reservation = reservations
                .get_mut(index)
                .and_then(Option::as_mut)
                .context("no such reservation")?;
            let (addr, expected) = (arguments.addr("LINK")?, arguments.addr("EXPECTED")?.raw());
            let replaced = Some(arguments.addr("REPLACED")?).filter(|addr| !addr.is_null());
            let new = if reservation.addr().is_null() {
                reservation.token()
            } else {
                reservation.addr().raw()
            };
            let mode = match command.as_str() {
                "compare" => PublishMode::Compare(arguments.addr("STAMP")?.raw()),
                "settle" => PublishMode::Settle(arguments.addr("WORD")?.raw()),
                _ => PublishMode::Plain,
            };
            let link = PublishCas { addr, expected, new, mask: u64::MAX, replaced, mode };
            format!("{:x}", pool.publish(reservation, &link)?)
        }
        "finish" => {
            let index = usize::try_from(arguments.number("N")?)?;
            let reservation = reservations
                .get_mut(index)
                .and_then(Option::take)
                .context("no such reservation")?;
            pool.finish(reservation)?;
            "ok".into()
        }
        other => bail!("there is no request '{other}'"),
    })
}

/// `mix TABLE SEED BYTES KEYS`: puts, inserts, updates, compares and deletes keys 0 to KEYS - 1
/// without a pause, and prints the number of operations after each 10.
pub(super) fn mix(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let table: GlobalAddr = arguments.addr("TABLE")?;
    let mut random = SmallRng::seed_from_u64(arguments.number("SEED")?);
    let (bytes, keys) = (arguments.number("BYTES")?, arguments.number("KEYS")?);
    let mut handle = Table::open(Arc::clone(pool), table)?.handle();
    let mut known = Vec::new();
    for number in 1_u64.. {
        let key = format!("key {}", random.random_range(0..keys));
        let value = value(number, usize::try_from(bytes)?);
        let done = match random.random_range(0..20) {
            0..10 => handle.put(key.as_bytes(), &value),
            10 | 11 => handle.insert(key.as_bytes(), &value),
            12 | 13 => handle.update(key.as_bytes(), &value),
            14..18 => match handle.get(key.as_bytes(), &mut known) {
                Ok(true) => handle.compare_and_put(key.as_bytes(), Some(&known), &value),
                other => other,
            },
            _ => handle.delete(key.as_bytes()),
        };
        match done {
            // A rack was so slow that it was taken for dead. What the operation leaves is reclaimed
            // when this program ends.
            Ok(_) | Err(KvError::OutcomeUnknown) => {}
            Err(error) => return Err(error.into()),
        }
        if number.is_multiple_of(10) {
            say(&number.to_string())?;
        }
    }
    Ok(())
}
