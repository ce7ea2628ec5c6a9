//! The commands on strings, if one of them is too long for an entry. Each works as its counterpart
//! in `strings`, in a transaction, and for strings of any length.

use std::ops::Range;

use rackpool_kv::{EntryChange, Form, ValueKind};

use super::arguments::integer;
use super::strings::{getex_change, getrange_of, positive, set_options};
use super::table::{find, wrong_number};
use super::{CommandResult, Context};
use crate::commands::execute::ExpiryUnit;
use crate::failure::{Failure, NOT_AN_INTEGER, said};
use crate::large::{LargeValue, MAX_STRING, Part};
use crate::number::parse_integer;
use crate::resp::{Args, Reply};
use crate::texts::{NewText, Text};

/// A command that copies more bytes would delay other connections.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Strings may not become longer than Redis allows.
const TOO_LONG: Failure = said("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

/// The key of which the argument with this index, which may be a large string, is the value; `None`
/// if the command takes no large string there. The arguments may be incomplete.
#[must_use]
pub fn key_of_large<'a>(args: Args<'a>, index: usize) -> Option<&'a [u8]> {
    let command = find(args.at(0))?;
    let key = match (command.name, index) {
        ("set" | "setnx" | "getset" | "append", 2) | ("setex" | "psetex" | "setrange", 3) => 1,
        ("mset", 2..) if index.is_multiple_of(2) => index - 1,
        _ => return None,
    };
    (args.large_at(key).is_none()).then(|| args.at(key))
}

/// The string to store in the argument with this index.
fn new_text<'a>(args: Args<'a>, index: usize) -> NewText<'a> {
    let bytes = || NewText::Bytes(args.at(index));
    args.large_at(index).map_or_else(bytes, NewText::Large)
}

fn answer(text: Option<Text>, reply: &mut Reply<'_>) {
    match text {
        Some(Text::Bytes(bytes)) => reply.bulk(&bytes),
        Some(Text::View(view)) => reply.view(view),
        None => reply.null(),
    }
}

pub(super) fn get(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let text = context.text(args.at(1))?;
    answer(text, reply);
    Ok(())
}

pub(super) fn strlen(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    reply.count(context.store.text_len(args.at(1))?.unwrap_or(0));
    Ok(())
}

pub(super) fn getrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (Some(start), Some(stop)) = (parse_integer(args.at(2)), parse_integer(args.at(3))) else {
        return Err(NOT_AN_INTEGER);
    };
    let part = context.part_of_text(args.at(1), |len| getrange_of(start, stop, len))?;
    answer(Some(part.unwrap_or(Text::Bytes(Vec::new()))), reply);
    Ok(())
}

pub(super) fn set(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (key, new) = (args.at(1), new_text(args, 2));
    let options = set_options(args)?;
    context.copies(new)?;
    let (old, done) = context.transact(|context| {
        let old = if options.gives_old { context.text(key)? } else { None };
        let form = context.store.form(key)?;
        let done = options.allow(form);
        if done {
            context.store.put_text(key, options.expires_ms(form), new)?;
        }
        Ok((old, done))
    })?;
    match (options.gives_old, done) {
        (true, _) => answer(old, reply),
        (false, true) => reply.simple("OK"),
        (false, false) => reply.null(),
    }
    Ok(())
}

pub(super) fn setnx(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (key, new) = (args.at(1), new_text(args, 2));
    context.copies(new)?;
    let done = context.transact(|context| {
        let is_absent = context.store.form(key)?.is_none();
        if is_absent {
            context.store.put_text(key, 0, new)?;
        }
        Ok(is_absent)
    })?;
    reply.flag(done);
    Ok(())
}

fn set_expiring(
    context: &mut Context<'_>,
    args: Args<'_>,
    unit: ExpiryUnit,
    name: &str,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let expires_ms = positive(args.at(2), unit, name)?;
    let new = new_text(args, 3);
    context.copies(new)?;
    context.transact(|context| context.store.put_text(args.at(1), expires_ms, new))?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn setex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    set_expiring(context, args, ExpiryUnit::SECONDS, "setex", reply)
}

pub(super) fn psetex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    set_expiring(context, args, ExpiryUnit::MILLISECONDS, "psetex", reply)
}

pub(super) fn getset(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (key, new) = (args.at(1), new_text(args, 2));
    context.copies(new)?;
    let old = context.transact(|context| {
        let old = context.text(key)?;
        context.store.put_text(key, 0, new)?;
        Ok(old)
    })?;
    answer(old, reply);
    Ok(())
}

pub(super) fn getdel(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let old = context.transact(|context| {
        let old = context.text(args.at(1))?;
        if old.is_some() {
            context.store.delete(args.at(1))?;
        }
        Ok(old)
    })?;
    answer(old, reply);
    Ok(())
}

pub(super) fn getex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let change = getex_change(args)?;
    let text = context.transact(|context| {
        let text = context.text(args.at(1))?;
        if let Some(change) = change.filter(|_| text.is_some()) {
            let expires_ms = change.expires_ms()?;
            context.store.change_entry(args.at(1), |entry, made| {
                let Some(entry) = entry else { return Ok((EntryChange::Keep, ())) };
                made.extend_from_slice(entry.value);
                Ok((EntryChange::Put(Form { expires_ms, ..entry.form }), ()))
            })?;
        }
        Ok(text)
    })?;
    answer(text, reply);
    Ok(())
}

pub(super) fn mget(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let before = reply.len();
    context.transact(|context| {
        reply.truncate(before);
        reply.array(args.len() - 1);
        for key in args.from(1) {
            let is_string = context.store.is_string(key)?;
            let text = if is_string { context.text(key)? } else { None };
            answer(text, reply);
            if reply.is_too_long() {
                break;
            }
        }
        Ok(())
    })
}

pub(super) fn mset(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if args.len().is_multiple_of(2) {
        return Err(wrong_number("mset"));
    }
    let pairs = (1..args.len()).step_by(2);
    pairs.clone().try_for_each(|at| context.copies(new_text(args, at + 1)))?;
    context.transact(|context| {
        pairs
            .clone()
            .try_for_each(|at| context.store.put_text(args.at(at), 0, new_text(args, at + 1)))
    })?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn append(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (key, new) = (args.at(1), new_text(args, 2));
    let len = context.transact(|context| {
        let old_len = context.store.text_len(key)?;
        let len = old_len.unwrap_or(0).saturating_add(new.len());
        if len > MAX_STRING {
            return Err(TOO_LONG);
        }
        context.give_way_if(len > COPIED_AT_ONCE)?;
        let Some(old) = context.text(key)? else {
            return context.store.put_text(key, 0, new).map(|()| len);
        };
        let more = context.store.text_of(new)?;
        context.put_parts(key, &[Part::Bytes(old.as_slice()), Part::Bytes(more.as_slice())])?;
        Ok(len)
    })?;
    reply.count(len);
    Ok(())
}

pub(super) fn setrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let offset = integer(args.at(2))?;
    let offset = usize::try_from(offset).map_err(|_| said("ERR offset is out of range"))?;
    let (key, new) = (args.at(1), new_text(args, 3));
    let end = offset.saturating_add(new.len());
    let len = context.transact(|context| {
        let old_len = context.store.text_len(key)?.unwrap_or(0);
        if new.is_empty() {
            return Ok(old_len);
        }
        if end > MAX_STRING {
            return Err(TOO_LONG);
        }
        let len = old_len.max(end);
        context.give_way_if(len > COPIED_AT_ONCE)?;
        let old = context.text(key)?;
        let old = old.as_ref().map_or(&[][..], Text::as_slice);
        let more = context.store.text_of(new)?;
        let before = old.get(..offset).unwrap_or(old);
        context.put_parts(
            key,
            &[
                Part::Bytes(before),
                Part::Zeros(offset - before.len()),
                Part::Bytes(more.as_slice()),
                Part::Bytes(old.get(end..).unwrap_or_default()),
            ],
        )?;
        Ok(len)
    })?;
    reply.count(len);
    Ok(())
}

impl Context<'_> {
    /// Gives way if storing the string copies many bytes.
    fn copies(&self, new: NewText<'_>) -> CommandResult {
        match new {
            NewText::Bytes(bytes) => self.give_way_if(bytes.len() > COPIED_AT_ONCE),
            NewText::Large(_) => Ok(()),
        }
    }

    /// The string of a key; `None` if the key is absent.
    fn text(&mut self, key: &[u8]) -> Result<Option<Text>, Failure> {
        self.part_of_text(key, |len| 0..len)
    }

    /// The part of a key's string that `part` chooses by its length; `None` if the key is absent.
    fn part_of_text(
        &mut self,
        key: &[u8],
        part: impl Fn(usize) -> Range<usize>,
    ) -> Result<Option<Text>, Failure> {
        let others_wait = self.others_wait;
        self.store.part_of_text(key, part, if others_wait { COPIED_AT_ONCE } else { usize::MAX })
    }

    /// Replaces a key's string, and keeps its expiry.
    fn put_parts(&mut self, key: &[u8], parts: &[Part<'_>]) -> CommandResult {
        let expires_ms = self.store.form(key)?.map_or(0, |form| form.expires_ms);
        let len = parts.iter().map(|part| part.len()).sum();
        if self.store.strings.is_ordinary(key, len) {
            let mut bytes = Vec::with_capacity(len);
            for part in parts {
                match part {
                    Part::Bytes(some) => bytes.extend_from_slice(some),
                    Part::Zeros(count) => bytes.resize(bytes.len() + count, 0),
                }
            }
            let form = Form { kind: ValueKind::STRING, expires_ms };
            return self.store.put(key, form, &bytes);
        }
        let value = LargeValue::build(&self.store.strings, key, parts)?;
        self.store.put_text(key, expires_ms, NewText::Large(&value))
    }
}
