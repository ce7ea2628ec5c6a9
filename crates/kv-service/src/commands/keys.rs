use rackpool_kv::{EntryChange, ValueKind};

use super::arguments::{is, lower};
use super::subcommands::{help, unknown_subcommand};
use super::{CommandResult, Context};
use crate::failure::{SYNTAX, told};
use crate::number::parse_integer;
use crate::resp::{Args, Reply};
use crate::values;

pub(super) fn del(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    // One key needs no transaction.
    let count = if args.len() == 2 {
        usize::from(context.store.delete(args.at(1))?)
    } else {
        context.transact(|context| {
            args.from(1)
                .try_fold(0, |count, key| Ok(count + usize::from(context.store.delete(key)?)))
        })?
    };
    reply.count(count);
    Ok(())
}

pub(super) fn exists(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = context.transact(|context| {
        args.from(1)
            .try_fold(0, |count, key| Ok(count + usize::from(context.store.form(key)?.is_some())))
    })?;
    reply.count(count);
    Ok(())
}

pub(super) fn type_of(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let form = context.store.form(args.at(1))?;
    reply.simple(form.map_or("none", |form| values::name(form.kind)));
    Ok(())
}

pub(super) fn object(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let what = lower(args.at(1));
    match (what.as_str(), args.len()) {
        ("help", 2) => help("object", reply),
        ("encoding", 3) if context.store.form(args.at(2))?.is_none() => reply.null(),
        ("encoding", 3) => match context.store.keys.read(args.at(2))? {
            Some(entry) => {
                let text = match entry.form.kind {
                    ValueKind::STRING if parse_integer(entry.value).is_some() => "int",
                    ValueKind::STRING if entry.value.len() <= 44 => "embstr",
                    ValueKind::STRING => "raw",
                    other => values::encoding(other),
                };
                reply.text(text);
            }
            None => reply.null(),
        },
        ("refcount", 3) if context.store.form(args.at(2))?.is_none() => reply.null(),
        ("refcount", 3) => {
            let entry = context.store.keys.read(args.at(2))?;
            let value = entry.filter(|entry| entry.form.kind == ValueKind::STRING);
            let number = value.and_then(|entry| parse_integer(entry.value));
            // Redis shares one object among all keys with such a value.
            let is_shared = number.is_some_and(|number| (0..10_000).contains(&number));
            reply.integer(if is_shared { i64::from(i32::MAX) } else { 1 });
        }
        ("freq", 3) => {
            let text = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                        Please note that when switching between policies at runtime LRU and LFU data \
                        will take some time to adjust.";
            return Err(told(text.to_owned()));
        }
        _ => return Err(unknown_subcommand("object", args)),
    }
    Ok(())
}

pub(super) fn dbsize(
    context: &mut Context<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    context.give_way_if(true)?;
    let keys = context.store.keyspace()?.keys;
    reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

pub(super) fn flush(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match args.len() {
        1 => {}
        2 if is(args.at(1), "sync") || is(args.at(1), "async") => {}
        _ => return Err(SYNTAX),
    }
    context.give_way_if(true)?;
    context.store.clear()?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn persist(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let done = context.store.change(args.at(1), |entry, made| {
        let Some(entry) = entry.filter(|entry| entry.form.expires_ms != 0) else {
            return Ok((EntryChange::Keep, false));
        };
        made.extend_from_slice(entry.value);
        let form = rackpool_kv::Form { kind: entry.form.kind, expires_ms: 0 };
        Ok((EntryChange::Put(form), true))
    })?;
    reply.flag(done);
    Ok(())
}
