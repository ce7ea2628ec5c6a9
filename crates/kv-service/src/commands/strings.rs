use std::ops::Range;

use rackpool_kv::{EntryChange, Form, ValueKind};

use super::arguments::{integer, is, slice};
use super::execute::{ExpiryUnit, expiry_ms};
use super::{CommandResult, Context};
use crate::failure::{Failure, NOT_AN_INTEGER, SYNTAX, said, told};
use crate::number::parse_integer;
use crate::resp::{Args, Reply};
use crate::store::value_of;
use crate::values::LARGE_STRING;

pub(super) fn get(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    context.store.with_value(args.at(1), ValueKind::STRING, |value| reply.bulk_or_null(value))
}

/// The condition under which `SET` stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SetCondition {
    Always,
    IfAbsent,
    IfPresent,
}

/// What `SET` does with the expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    Never,
    Keep,
    At(u64),
}

pub(super) struct SetOptions {
    pub(super) only: SetCondition,
    pub(super) expiry: Expiry,
    pub(super) gives_old: bool,
}

impl SetOptions {
    /// Whether `SET` stores if there is an entry of this form; `None`: none.
    pub(super) const fn allow(&self, old: Option<Form>) -> bool {
        match self.only {
            SetCondition::Always => true,
            SetCondition::IfAbsent => old.is_none(),
            SetCondition::IfPresent => old.is_some(),
        }
    }

    /// The expiry of the new value.
    pub(super) fn expires_ms(&self, old: Option<Form>) -> u64 {
        match self.expiry {
            Expiry::Never => 0,
            Expiry::Keep => old.map_or(0, |form| form.expires_ms),
            Expiry::At(ms) => ms,
        }
    }
}

/// An expiry that must be greater than 0.
pub(super) fn positive(number: &[u8], unit: ExpiryUnit, command: &str) -> Result<u64, Failure> {
    let number = integer(number)?;
    let invalid = || told(format!("ERR invalid expire time in '{command}' command"));
    if number <= 0 {
        return Err(invalid());
    }
    u64::try_from(expiry_ms(number, unit, command)?).map_err(|_| invalid())
}

/// The unit of an expiry option (`EX`, `PX`, `EXAT` or `PXAT`).
fn expiry_option(word: &[u8]) -> Option<ExpiryUnit> {
    [
        ("ex", ExpiryUnit::SECONDS),
        ("px", ExpiryUnit::MILLISECONDS),
        ("exat", ExpiryUnit::UNIX_SECONDS),
        ("pxat", ExpiryUnit::UNIX_MILLISECONDS),
    ]
    .into_iter()
    .find_map(|(name, unit)| is(word, name).then_some(unit))
}

pub(super) fn set_options(args: Args<'_>) -> Result<SetOptions, Failure> {
    let mut options =
        SetOptions { only: SetCondition::Always, expiry: Expiry::Never, gives_old: false };
    let mut time: Option<(&[u8], ExpiryUnit)> = None;
    let mut words = args.from(3);
    while let Some(word) = words.next() {
        if is(word, "nx") && options.only != SetCondition::IfPresent {
            options.only = SetCondition::IfAbsent;
        } else if is(word, "xx") && options.only != SetCondition::IfAbsent {
            options.only = SetCondition::IfPresent;
        } else if is(word, "get") {
            options.gives_old = true;
        } else if is(word, "keepttl") && time.is_none() {
            options.expiry = Expiry::Keep;
        } else if let Some(unit) = expiry_option(word)
            && options.expiry == Expiry::Never
            && time.is_none_or(|(_, before)| before == unit)
            && let Some(number) = words.next()
        {
            time = Some((number, unit));
        } else {
            return Err(SYNTAX);
        }
    }
    if let Some((number, unit)) = time {
        options.expiry = Expiry::At(positive(number, unit, "set")?);
    }
    Ok(options)
}

pub(super) fn set(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (key, value) = (args.at(1), args.at(2));
    if args.len() == 3 {
        context.store.put(key, Form::PLAIN, value)?;
        reply.simple("OK");
        return Ok(());
    }
    let options = set_options(args)?;
    if let (SetCondition::Always, false, Expiry::At(expires_ms)) =
        (options.only, options.gives_old, options.expiry)
    {
        context.store.put(key, Form { kind: ValueKind::STRING, expires_ms }, value)?;
        reply.simple("OK");
        return Ok(());
    }
    let (old, done) = context.store.change(key, |entry, made| {
        let old = if options.gives_old {
            value_of(entry, ValueKind::STRING)?.map(<[u8]>::to_vec)
        } else {
            None
        };
        let form = entry.map(|entry| entry.form);
        if !options.allow(form) {
            return Ok((EntryChange::Keep, (old, false)));
        }
        made.extend_from_slice(value);
        let expires_ms = options.expires_ms(form);
        Ok((EntryChange::Put(Form { kind: ValueKind::STRING, expires_ms }), (old, true)))
    })?;
    match (options.gives_old, done) {
        (true, _) => reply.bulk_or_null(old.as_deref()),
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
    let done = context.store.change(args.at(1), |entry, made| {
        if entry.is_some() {
            return Ok((EntryChange::Keep, false));
        }
        made.extend_from_slice(args.at(2));
        Ok((EntryChange::Put(Form::PLAIN), true))
    })?;
    reply.flag(done);
    Ok(())
}

fn set_expiring(
    context: &mut Context<'_>,
    args: Args<'_>,
    unit: ExpiryUnit,
    name: &str,
) -> CommandResult {
    let expires_ms = positive(args.at(2), unit, name)?;
    context.store.put(args.at(1), Form { kind: ValueKind::STRING, expires_ms }, args.at(3))
}

pub(super) fn setex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    set_expiring(context, args, ExpiryUnit::SECONDS, "setex")?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn psetex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    set_expiring(context, args, ExpiryUnit::MILLISECONDS, "psetex")?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn getset(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let old = context.store.change(args.at(1), |entry, made| {
        let old = value_of(entry, ValueKind::STRING)?.map(<[u8]>::to_vec);
        made.extend_from_slice(args.at(2));
        Ok((EntryChange::Put(Form::PLAIN), old))
    })?;
    reply.bulk_or_null(old.as_deref());
    Ok(())
}

pub(super) fn getdel(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let old = context.store.change(args.at(1), |entry, _| {
        Ok((EntryChange::Delete, value_of(entry, ValueKind::STRING)?.map(<[u8]>::to_vec)))
    })?;
    reply.bulk_or_null(old.as_deref());
    Ok(())
}

/// The change of the expiry that `GETEX` asks for.
#[derive(Clone, Copy)]
pub(super) enum GetexChange<'a> {
    Persist,
    At(&'a [u8], ExpiryUnit),
}

impl GetexChange<'_> {
    /// The new expiry; 0: none.
    pub(super) fn expires_ms(self) -> Result<u64, Failure> {
        match self {
            Self::Persist => Ok(0),
            Self::At(number, unit) => positive(number, unit, "getex"),
        }
    }
}

/// The options of `GETEX`; `None` if the expiry stays.
pub(super) fn getex_change(args: Args<'_>) -> Result<Option<GetexChange<'_>>, Failure> {
    let mut time: Option<(&[u8], ExpiryUnit)> = None;
    let mut persists = false;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        if is(word, "persist") && time.is_none() {
            persists = true;
        } else if let Some(unit) = expiry_option(word)
            && !persists
            && time.is_none_or(|(_, before)| before == unit)
            && let Some(number) = words.next()
        {
            time = Some((number, unit));
        } else {
            return Err(SYNTAX);
        }
    }
    let time = time.map(|(number, unit)| GetexChange::At(number, unit));
    Ok(time.or(persists.then_some(GetexChange::Persist)))
}

pub(super) fn getex(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let change = getex_change(args)?;
    // Redis checks the type of the value before the expiry.
    let is_there =
        context.store.with_value(args.at(1), ValueKind::STRING, |value| value.is_some())?;
    let Some(expiry) = change.filter(|_| is_there).map(GetexChange::expires_ms).transpose()? else {
        return get(context, args, reply);
    };
    let value = context.store.change(args.at(1), |entry, made| {
        let Some(entry) = entry else { return Ok((EntryChange::Keep, None)) };
        let value = value_of(Some(entry), ValueKind::STRING)?.unwrap_or_default();
        if entry.form.expires_ms == expiry {
            return Ok((EntryChange::Keep, Some(value.to_vec())));
        }
        made.extend_from_slice(value);
        let form = Form { kind: ValueKind::STRING, expires_ms: expiry };
        Ok((EntryChange::Put(form), Some(value.to_vec())))
    })?;
    reply.bulk_or_null(value.as_deref());
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
            let entry = context.store.keys.read(key)?;
            if entry.is_some_and(|entry| entry.form.kind == LARGE_STRING) {
                return Err(Failure::LargeString);
            }
            let entry = entry.filter(|entry| entry.form.kind == ValueKind::STRING);
            reply.bulk_or_null(entry.map(|entry| entry.value));
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
        return Err(super::table::wrong_number("mset"));
    }
    context.transact(|context| {
        (1..args.len())
            .step_by(2)
            .try_for_each(|at| context.store.put(args.at(at), Form::PLAIN, args.at(at + 1)))
    })?;
    reply.simple("OK");
    Ok(())
}

pub(super) fn append(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let len = context.store.change(args.at(1), |entry, made| {
        made.extend_from_slice(value_of(entry, ValueKind::STRING)?.unwrap_or_default());
        made.extend_from_slice(args.at(2));
        Ok((EntryChange::Put(entry.map_or(Form::PLAIN, |entry| entry.form)), made.len()))
    })?;
    reply.count(len);
    Ok(())
}

pub(super) fn strlen(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let len = |value: Option<&[u8]>| reply.count(value.map_or(0, <[u8]>::len));
    context.store.with_value(args.at(1), ValueKind::STRING, len)
}

pub(super) fn getrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (Some(start), Some(stop)) = (parse_integer(args.at(2)), parse_integer(args.at(3))) else {
        return Err(NOT_AN_INTEGER);
    };
    context.store.with_value(args.at(1), ValueKind::STRING, |value| {
        let value = value.unwrap_or_default();
        reply.bulk(&value[getrange_of(start, stop, value.len())]);
    })
}

/// The part of a string of `len` bytes that `GETRANGE` gives.
///
/// As in Redis: a range that is empty because both ends count from the end stays empty, and a
/// `stop` before the start of the string selects its first byte.
pub(super) fn getrange_of(start: i64, stop: i64, len: usize) -> Range<usize> {
    if start < 0 && stop < 0 && start > stop {
        return 0..0;
    }
    let count = i64::try_from(len).unwrap_or(i64::MAX);
    let stop = if stop < 0 { stop.saturating_add(count).max(0) } else { stop };
    slice(start, stop, len)
}

pub(super) fn setrange(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let offset = integer(args.at(2))?;
    let offset = usize::try_from(offset).map_err(|_| said("ERR offset is out of range"))?;
    let value = args.at(3);
    let end = offset.saturating_add(value.len());
    // No buffer is allocated for a string that is longer than any entry.
    let longest = context.shared.longest_entry;
    let len = context.store.change(args.at(1), |entry, made| {
        let old = value_of(entry, ValueKind::STRING)?.unwrap_or_default();
        if value.is_empty() {
            return Ok((EntryChange::Keep, old.len()));
        }
        if end > longest {
            return Err(Failure::LargeString);
        }
        made.extend_from_slice(old);
        made.resize(made.len().max(end), 0);
        made[offset..end].copy_from_slice(value);
        Ok((EntryChange::Put(entry.map_or(Form::PLAIN, |entry| entry.form)), made.len()))
    })?;
    reply.count(len);
    Ok(())
}
