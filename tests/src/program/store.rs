//! Writing values, with every acknowledgement printed.

use std::sync::Arc;

use rackpool_client::{Pool, WriteRequest};
use rackpool_kv::Table;

use super::{Arguments, say};
use crate::contents;

/// `write ADDR BYTES`: writes the patterns 1, 2, 3 ... to an object, reads them back, and prints
/// each number once it is written.
pub(super) fn write(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (addr, bytes) = (arguments.addr("ADDR")?, arguments.number("BYTES")?);
    let mut buffer = vec![0; usize::try_from(bytes)?];
    for number in 1_u64.. {
        contents::fill(number, &mut buffer);
        pool.write(addr, &buffer)?;
        say(&number.to_string())?;
        pool.read(addr, &mut buffer)?;
        if let Some(at) = contents::difference(number, &buffer) {
            anyhow::bail!("{addr} does not hold {number} at {at}");
        }
    }
    Ok(())
}

/// The patterns that `copy` writes.
pub const COPIED: [u64; 2] = [1, 2];

/// `copy ADDR BYTES`: writes two patterns to an object in turn, in the largest pieces possible and
/// as many at a time as possible, so that at any time it is most likely in the middle of a copy.
/// The object must begin at a multiple of the piece's length.
pub(super) fn copy(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    const PIECE: usize = 64 << 10;
    let (addr, bytes) = (arguments.addr("ADDR")?, arguments.number("BYTES")?);
    let len = usize::try_from(bytes)?;
    let patterns = COPIED.map(|tag| contents::of(tag, len));
    for round in 0_usize.. {
        let pieces = patterns[round % 2].chunks(PIECE);
        let places = (0..bytes).step_by(PIECE).map(|offset| addr.add(offset));
        let writes = places.zip(pieces).map(|(addr, from)| Ok(WriteRequest { addr: addr?, from }));
        pool.write_batch(&writes.collect::<anyhow::Result<Vec<_>>>()?)?;
        if round == 0 {
            say("copying")?;
        }
    }
    Ok(())
}

/// `add ADDR`: adds 1 repeatedly and prints the value before each addition.
pub(super) fn add(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let addr = arguments.addr("ADDR")?;
    loop {
        say(&pool.fetch_and_add(addr, 1)?.to_string())?;
    }
}

/// `put TABLE PREFIX BYTES KEYS`: puts 1, 2, 3 ... under the keys PREFIX-0, PREFIX-1 ... in turn,
/// and prints `put KEY NUMBER` each time.
pub(super) fn put(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (table, prefix) = (arguments.addr("TABLE")?, arguments.text("PREFIX")?);
    let (bytes, keys) = (arguments.number("BYTES")?, arguments.number("KEYS")?);
    let mut handle = Table::open(Arc::clone(pool), table)?.handle();
    for number in 1_u64.. {
        let key = format!("{prefix}-{}", number % keys);
        handle.put(key.as_bytes(), &value(number, usize::try_from(bytes)?))?;
        say(&format!("put {key} {number}"))?;
    }
    Ok(())
}

/// A value that contains its number.
#[must_use]
pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(contents::of(number, bytes));
    value
}

/// The number of a value; `None` when [`value`] did not make it.
#[must_use]
pub fn number_of(value: &[u8]) -> Option<u64> {
    let (number, contents) = value.split_first_chunk()?;
    let number = u64::from_le_bytes(*number);
    contents::difference(number, contents).is_none().then_some(number)
}

/// `count TABLE KEY`: raises the counter of KEY by compare-and-put repeatedly and prints each new
/// value.
pub(super) fn count(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (table, key) = (arguments.addr("TABLE")?, arguments.text("KEY")?);
    let mut handle = Table::open(Arc::clone(pool), table)?.handle();
    let mut found = Vec::new();
    loop {
        let there = handle.get(key.as_bytes(), &mut found)?;
        let number = if there { number_of(&found).unwrap_or(0) } else { 0 };
        let expected = there.then_some(found.as_slice());
        if handle.compare_and_put(key.as_bytes(), expected, &value(number + 1, 24))? {
            say(&format!("raised {}", number + 1))?;
        }
    }
}
