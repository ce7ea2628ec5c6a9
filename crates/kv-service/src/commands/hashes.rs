use rackpool_kv::ordered::{Direction, KeyRange, MapChange, MapEntry, MapId};

use super::arguments::integer;
use super::numbers::{OVERFLOW, float_sum};
use super::scan::scan_pairs;
use super::{CommandResult, Context};
use crate::collections::{Edit, LargeMaps, Small};
use crate::failure::{DAMAGED, Failure, NOT_A_FLOAT, said};
use crate::number::{parse_float, parse_integer};
use crate::resp::{Args, Reply};
use crate::values::HASH;
use crate::values::hash::{Fields, MAX_SMALL};

/// Inserts the fields of a small hash into a new map.
fn fill(maps: &mut LargeMaps, id: MapId, fields: &[u8]) -> Result<(), Failure> {
    for field in Fields(fields).iter() {
        let field = field?;
        maps.map(id).insert(field.name, field.value)?;
    }
    Ok(())
}

/// `Store` for a changed small hash; `Grow` if it is too large.
fn stored<R>(made: &[u8], result: R) -> Small<R> {
    if made.len() > MAX_SMALL { Small::Grow } else { Small::Store(result) }
}

/// A copy of all fields.
fn all(context: &mut Context<'_>, key: &[u8]) -> Result<Vec<MapEntry>, Failure> {
    context.store.look(
        key,
        HASH,
        |small| {
            let entry = |field: Result<crate::values::hash::Field<'_>, Failure>| {
                field
                    .map(|field| MapEntry { key: field.name.to_vec(), value: field.value.to_vec() })
            };
            Fields(small).iter().map(entry).collect()
        },
        |maps, id| Ok(maps.map(id).range(&KeyRange::ALL, Direction::Forward, usize::MAX)?),
    )
}

/// Calls `work` with the value of a field, or with `None` if it is absent.
fn with_field<R>(
    context: &mut Context<'_>,
    key: &[u8],
    name: &[u8],
    mut work: impl FnMut(Option<&[u8]>) -> R,
) -> Result<R, Failure> {
    let work = std::cell::RefCell::new(&mut work);
    context.store.look(
        key,
        HASH,
        |small| Fields(small).get(name).map(|value| (work.borrow_mut())(value)),
        |maps, id| {
            let mut value = Vec::new();
            let found = maps.map(id).get(name, &mut value)?;
            Ok((work.borrow_mut())(found.then_some(&value)))
        },
    )
}

fn set_all(context: &mut Context<'_>, args: Args<'_>) -> Result<usize, Failure> {
    let mut spare = Vec::new();
    let small = |old: &[u8], made: &mut Vec<u8>| {
        made.extend_from_slice(old);
        let mut count = 0;
        for at in (2..args.len()).step_by(2) {
            spare.clear();
            count += usize::from(Fields(made).set(args.at(at), args.at(at + 1), &mut spare)?);
            std::mem::swap(made, &mut spare);
            if made.len() > MAX_SMALL {
                return Ok(Small::Grow);
            }
        }
        Ok(stored(made, count))
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        let mut count = 0;
        for at in (2..args.len()).step_by(2) {
            count += usize::from(maps.map(id).insert(args.at(at), args.at(at + 1))?.is_none());
        }
        Ok(count)
    };
    let several = args.len() > 4;
    context.edit(args.at(1), Edit { family: HASH, several, small, large, fill })
}

pub(super) fn hset(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(super::table::wrong_number("hset"));
    }
    let count = set_all(context, args)?;
    reply.count(count);
    Ok(())
}

pub(super) fn hmset(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(super::table::wrong_number("hmset"));
    }
    set_all(context, args)?;
    reply.simple("OK");
    Ok(())
}

/// Sets a field to the value that `change` computes from its old one; `None` leaves the field as it
/// is. Returns the second result of `change`, which may be called again.
fn update<R>(
    context: &mut Context<'_>,
    key: &[u8],
    name: &[u8],
    change: impl FnMut(Option<&[u8]>) -> Result<(Option<Vec<u8>>, R), Failure>,
) -> Result<R, Failure> {
    let change = std::cell::RefCell::new(change);
    let small = |old: &[u8], made: &mut Vec<u8>| {
        let fields = Fields(old);
        let (value, result) = (change.borrow_mut())(fields.get(name)?)?;
        let Some(value) = value else { return Ok(Small::Keep(result)) };
        fields.set(name, &value, made)?;
        Ok(stored(made, result))
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        let mut given = None;
        maps.map(id).update(name, |old| match (change.borrow_mut())(old) {
            Ok((value, result)) => {
                given = Some(Ok(result));
                value.map_or(MapChange::Keep, MapChange::Put)
            }
            Err(failure) => {
                given = Some(Err(failure));
                MapChange::Keep
            }
        })?;
        given.unwrap_or(Err(DAMAGED))
    };
    context.edit(key, Edit { family: HASH, several: false, small, large, fill })
}

pub(super) fn hsetnx(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let done = update(context, args.at(1), args.at(2), |old| {
        let value = old.is_none().then(|| args.at(3).to_vec());
        Ok((value, old.is_none()))
    })?;
    reply.flag(done);
    Ok(())
}

pub(super) fn hget(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    with_field(context, args.at(1), args.at(2), |value| reply.bulk_or_null(value))
}

pub(super) fn hmget(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let names = || args.from(2);
    let values: Vec<Option<Vec<u8>>> = context.store.look(
        args.at(1),
        HASH,
        |small| {
            let fields = Fields(small);
            names().map(|name| Ok(fields.get(name)?.map(<[u8]>::to_vec))).collect()
        },
        |maps, id| {
            let mut get = |name| {
                let mut value = Vec::new();
                let found = maps.map(id).get(name, &mut value)?;
                Ok(found.then_some(value))
            };
            names().map(&mut get).collect()
        },
    )?;
    reply.array(values.len());
    values.iter().for_each(|value| reply.bulk_or_null(value.as_deref()));
    Ok(())
}

pub(super) fn hgetall(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let fields = all(context, args.at(1))?;
    reply.map(fields.len());
    for MapEntry { key: name, value } in fields {
        reply.bulk(&name);
        reply.bulk(&value);
    }
    Ok(())
}

pub(super) fn hkeys(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let fields = all(context, args.at(1))?;
    reply.array(fields.len());
    fields.iter().for_each(|field| reply.bulk(&field.key));
    Ok(())
}

pub(super) fn hvals(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let fields = all(context, args.at(1))?;
    reply.array(fields.len());
    fields.iter().for_each(|field| reply.bulk(&field.value));
    Ok(())
}

pub(super) fn hlen(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = context.store.look(
        args.at(1),
        HASH,
        |small| Fields(small).count(),
        |maps, id| Ok(usize::try_from(maps.map(id).count(&KeyRange::ALL)?).unwrap_or(usize::MAX)),
    )?;
    reply.count(count);
    Ok(())
}

pub(super) fn hexists(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    with_field(context, args.at(1), args.at(2), |value| reply.flag(value.is_some()))
}

pub(super) fn hstrlen(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    with_field(context, args.at(1), args.at(2), |value| reply.count(value.map_or(0, <[u8]>::len)))
}

pub(super) fn hdel(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut spare = Vec::new();
    let small = |old: &[u8], made: &mut Vec<u8>| {
        made.extend_from_slice(old);
        let mut count = 0;
        for name in args.from(2) {
            spare.clear();
            count += usize::from(Fields(made).remove(name, &mut spare)?);
            std::mem::swap(made, &mut spare);
        }
        Ok(if count == 0 { Small::Keep(0) } else { Small::Store(count) })
    };
    let large = |maps: &mut LargeMaps, id: MapId| {
        let mut count = 0;
        for name in args.from(2) {
            count += usize::from(maps.map(id).remove(name)?.is_some());
        }
        Ok(count)
    };
    let several = args.len() > 3;
    let count = context.edit(args.at(1), Edit { family: HASH, several, small, large, fill })?;
    reply.count(count);
    Ok(())
}

pub(super) fn hincrby(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let by = integer(args.at(3))?;
    let sum = update(context, args.at(1), args.at(2), |old| {
        let old = match old {
            Some(old) => parse_integer(old).ok_or(said("ERR hash value is not an integer"))?,
            None => 0,
        };
        let sum = old.checked_add(by).ok_or(OVERFLOW)?;
        Ok((Some(sum.to_string().into_bytes()), sum))
    })?;
    reply.integer(sum);
    Ok(())
}

pub(super) fn hincrbyfloat(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if parse_float(args.at(3)).ok_or(NOT_A_FLOAT)?.is_infinite() {
        return Err(said("ERR value is NaN or Infinity"));
    }
    let sum = update(context, args.at(1), args.at(2), |old| {
        let old = old.unwrap_or(b"0");
        parse_float(old).ok_or(said("ERR hash value is not a float"))?;
        let sum = float_sum(old, args.at(3))?;
        Ok((Some(sum.clone().into_bytes()), sum))
    })?;
    reply.text(&sum);
    Ok(())
}

pub(super) fn hscan(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let pairs = all(context, args.at(1))?;
    scan_pairs(args, reply, &pairs)
}
