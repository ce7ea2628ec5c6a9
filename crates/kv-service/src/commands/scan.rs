use std::collections::BTreeMap;

use rackpool_kv::ordered::MapEntry;

use super::arguments::{integer, is, lower};
use super::{CommandResult, Context, MANY};
use crate::failure::{Failure, SYNTAX, said};
use crate::glob;
use crate::resp::{Args, Reply};
use crate::store::Store;
use crate::values::{self, LargeMap};

/// The number of entries that one step of a whole walk reads.
const STRIDE: usize = 256;
/// The most steps of one `SCAN` in a sparse part of the table.
const MAX_STEPS: usize = 1000;

/// The options of a scan.
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    kind: Option<String>,
}

impl<'a> ScanOptions<'a> {
    fn parse(args: Args<'a>, first: usize) -> Result<Self, Failure> {
        let mut wanted = Self { pattern: None, count: 10, kind: None };
        let mut words = args.from(first);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(SYNTAX)?;
            if is(word, "count") {
                let count = integer(value)?;
                wanted.count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or(SYNTAX)?;
            } else if is(word, "match") {
                wanted.pattern = Some(value);
            } else if is(word, "type") {
                wanted.kind = Some(lower(value));
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(wanted)
    }

    fn fits(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

fn cursor(argument: &[u8]) -> Result<u64, Failure> {
    let text = std::str::from_utf8(argument).unwrap_or_default();
    // As with C's `strtoul`, a negative number wraps around.
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) if !digits.starts_with('+') => (true, digits),
        _ => (false, text),
    };
    let number: u64 = digits.parse().map_err(|_| said("ERR invalid cursor"))?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

pub(super) fn scan(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut cursor = cursor(args.at(1))?;
    let wanted = ScanOptions::parse(args, 2)?;
    context.give_way_if(wanted.count > MANY)?;
    let (mut keys, mut seen) = (Vec::new(), 0);
    for step in 0..MAX_STEPS {
        context.give_way_if(step > MANY)?;
        let more = wanted.count.saturating_sub(seen).max(1);
        cursor = context.store.keys.scan(cursor, more, |key, entry| {
            seen += 1;
            let is_wanted = |kind: &String| values::name(entry.form.kind) == *kind;
            if !entry.form.is_over()
                && wanted.kind.as_ref().is_none_or(is_wanted)
                && wanted.fits(key)
            {
                keys.push((key.to_vec(), values::large_map(entry)));
            }
        })?;
        if cursor == 0 || seen >= wanted.count {
            break;
        }
    }
    let keys = present(context.store, keys.into_iter())?;
    reply.array(2);
    reply.text(&cursor.to_string());
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

/// Removes the keys of empty large collections, which count as absent.
fn present(
    store: &mut Store,
    found: impl Iterator<Item = (Vec<u8>, Option<LargeMap>)>,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut keys = Vec::new();
    for (key, map) in found {
        if !map.map_or(Ok(false), |map| store.is_empty(map))? {
            keys.push(key);
        }
    }
    Ok(keys)
}

pub(super) fn keys(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    context.give_way_if(true)?;
    let pattern = args.at(1);
    let mut keys = BTreeMap::new();
    let mut cursor = 0;
    loop {
        cursor = context.store.keys.scan(cursor, STRIDE, |key, entry| {
            if !entry.form.is_over() && glob::matches(pattern, key) {
                keys.insert(key.to_vec(), values::large_map(entry));
            }
        })?;
        if cursor == 0 {
            break;
        }
    }
    let keys = present(context.store, keys.into_iter())?;
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

/// Answers a scan of a hash or a sorted set, which returns all elements at once.
pub(super) fn scan_pairs(
    args: Args<'_>,
    reply: &mut Reply<'_>,
    pairs: &[MapEntry],
) -> CommandResult {
    cursor(args.at(2))?;
    let wanted = ScanOptions::parse(args, 3)?;
    if wanted.kind.is_some() {
        return Err(SYNTAX);
    }
    let fitting = pairs.iter().filter(|pair| wanted.fits(&pair.key));
    let fitting: Vec<_> = fitting.flat_map(|pair| [&pair.key, &pair.value]).collect();
    reply.array(2);
    reply.text("0");
    reply.array(fitting.len());
    fitting.iter().for_each(|bytes| reply.bulk(bytes));
    Ok(())
}
