use rackpool_kv::{EntryChange, Form, now_ms};

use super::arguments::{integer, lower};
use super::execute::{ExpiryUnit, expiry_ms};
use super::{CommandResult, Context};
use crate::failure::{Failure, said, told};
use crate::resp::{Args, Reply};

/// The condition under which an expiry is set.
#[derive(Clone, Copy, Debug, Default)]
struct ExpireCondition {
    without: bool,
    with: bool,
    later: bool,
    earlier: bool,
}

impl ExpireCondition {
    fn parse(args: Args<'_>) -> Result<Self, Failure> {
        let mut only = Self::default();
        for word in args.from(3) {
            match lower(word).as_str() {
                "nx" => only.without = true,
                "xx" => only.with = true,
                "gt" => only.later = true,
                "lt" => only.earlier = true,
                _ => {
                    let word = String::from_utf8_lossy(word).into_owned();
                    return Err(told(format!("ERR Unsupported option {word}")));
                }
            }
        }
        if only.without && (only.with || only.later || only.earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(said(text));
        }
        if only.later && only.earlier {
            return Err(said("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(only)
    }

    /// Whether an expiry may replace the old one; 0 is none.
    const fn allows(self, old: u64, new: i64) -> bool {
        let is_later = old != 0 && new > old.cast_signed();
        let is_earlier = old == 0 || new < old.cast_signed();
        let refused = if old == 0 { self.with } else { self.without };
        !refused && (is_later || !self.later) && (is_earlier || !self.earlier)
    }
}

fn expire_at(
    context: &mut Context<'_>,
    args: Args<'_>,
    unit: ExpiryUnit,
    name: &str,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let only = ExpireCondition::parse(args)?;
    let number = integer(args.at(2))?;
    let at = expiry_ms(number, unit, name)?;
    let done = context.store.change(args.at(1), |entry, made| {
        let Some(entry) = entry.filter(|entry| only.allows(entry.form.expires_ms, at)) else {
            return Ok((EntryChange::Keep, false));
        };
        match u64::try_from(at) {
            Ok(expires_ms) if expires_ms > now_ms() => {
                made.extend_from_slice(entry.value);
                Ok((EntryChange::Put(Form { kind: entry.form.kind, expires_ms }), true))
            }
            _ => Ok((EntryChange::Delete, true)),
        }
    })?;
    reply.flag(done);
    Ok(())
}

pub(super) fn expire(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    expire_at(context, args, ExpiryUnit::SECONDS, "expire", reply)
}

pub(super) fn pexpire(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    expire_at(context, args, ExpiryUnit::MILLISECONDS, "pexpire", reply)
}

pub(super) fn expireat(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    expire_at(context, args, ExpiryUnit::UNIX_SECONDS, "expireat", reply)
}

pub(super) fn pexpireat(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    expire_at(context, args, ExpiryUnit::UNIX_MILLISECONDS, "pexpireat", reply)
}

/// The expiry of a key, or the answer -2 if the key is absent, -1 if it does not expire.
fn expiry(context: &mut Context<'_>, key: &[u8]) -> Result<Result<u64, i64>, Failure> {
    let Some(form) = context.store.form(key)? else { return Ok(Err(-2)) };
    Ok(if form.expires_ms == 0 { Err(-1) } else { Ok(form.expires_ms) })
}

fn answer(reply: &mut Reply<'_>, expiry: Result<u64, i64>, number: impl FnOnce(u64) -> u64) {
    match expiry {
        Ok(ms) => reply.integer(i64::try_from(number(ms)).unwrap_or(i64::MAX)),
        Err(none) => reply.integer(none),
    }
}

pub(super) fn ttl(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let expiry = expiry(context, args.at(1))?;
    answer(reply, expiry, |ms| ms.saturating_sub(now_ms()).saturating_add(500) / 1000);
    Ok(())
}

pub(super) fn pttl(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let expiry = expiry(context, args.at(1))?;
    answer(reply, expiry, |ms| ms.saturating_sub(now_ms()));
    Ok(())
}

pub(super) fn expiretime(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let expiry = expiry(context, args.at(1))?;
    answer(reply, expiry, |ms| ms.saturating_add(500) / 1000);
    Ok(())
}

pub(super) fn pexpiretime(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let expiry = expiry(context, args.at(1))?;
    answer(reply, expiry, |ms| ms);
    Ok(())
}
