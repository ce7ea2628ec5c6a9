use rackpool_kv::{EntryChange, Form, ValueKind};

use super::arguments::integer;
use super::{CommandResult, Context};
use crate::failure::{Failure, NOT_A_FLOAT, NOT_AN_INTEGER, said};
use crate::number::{add_floats, parse_float, parse_integer, push_integer};
use crate::resp::{Args, Reply};
use crate::store::value_of;

pub(super) const OVERFLOW: Failure = said("ERR increment or decrement would overflow");

fn add(context: &mut Context<'_>, key: &[u8], by: i64, reply: &mut Reply<'_>) -> CommandResult {
    let sum = context.store.change(key, |entry, made| {
        let old = match value_of(entry, ValueKind::STRING)? {
            Some(old) => parse_integer(old).ok_or(NOT_AN_INTEGER)?,
            None => 0,
        };
        let sum = old.checked_add(by).ok_or(OVERFLOW)?;
        push_integer(made, sum);
        Ok((EntryChange::Put(entry.map_or(Form::PLAIN, |entry| entry.form)), sum))
    })?;
    reply.integer(sum);
    Ok(())
}

pub(super) fn incr(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    add(context, args.at(1), 1, reply)
}

/// A string that is too long for an entry is no integer.
pub(super) fn not_an_integer(_: &mut Context<'_>, _: Args<'_>, _: &mut Reply<'_>) -> CommandResult {
    Err(NOT_AN_INTEGER)
}

/// A string that is too long for an entry is no number.
pub(super) fn not_a_float(_: &mut Context<'_>, _: Args<'_>, _: &mut Reply<'_>) -> CommandResult {
    Err(NOT_A_FLOAT)
}

pub(super) fn decr(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    add(context, args.at(1), -1, reply)
}

pub(super) fn incrby(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    add(context, args.at(1), integer(args.at(2))?, reply)
}

pub(super) fn decrby(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let by = integer(args.at(2))?;
    let by = by.checked_neg().ok_or(said("ERR decrement would overflow"))?;
    add(context, args.at(1), by, reply)
}

pub(super) fn incrbyfloat(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let by = args.at(2);
    let sum = context.store.change(args.at(1), |entry, made| {
        let old = value_of(entry, ValueKind::STRING)?.unwrap_or(b"0");
        parse_float(old).ok_or(NOT_A_FLOAT)?;
        let sum = float_sum(old, by)?;
        made.extend_from_slice(sum.as_bytes());
        Ok((EntryChange::Put(entry.map_or(Form::PLAIN, |entry| entry.form)), sum))
    })?;
    reply.text(&sum);
    Ok(())
}

/// The sum of two floating-point numbers.
pub(super) fn float_sum(old: &[u8], by: &[u8]) -> Result<String, Failure> {
    let sum = add_floats(old, by).ok_or(NOT_A_FLOAT)?;
    sum.map_err(|_| said("ERR increment would produce NaN or Infinity"))
}
