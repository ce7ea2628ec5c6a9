use std::time::Instant;

use super::arguments::{integer, is};
use super::table::wrong_number;
use super::{CommandResult, Context};
use crate::failure::{SYNTAX, said, told};
use crate::number::parse_integer;
use crate::resp::{Args, Reply};
use crate::session::Replies;

pub(super) fn ping(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    match args.len() {
        1 => reply.simple("PONG"),
        2 => reply.bulk(args.at(1)),
        _ => return Err(wrong_number("ping")),
    }
    Ok(())
}

pub(super) fn echo(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.bulk(args.at(1));
    Ok(())
}

pub(super) fn select(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    match parse_integer(args.at(1)) {
        Some(0) => reply.simple("OK"),
        Some(1..16) => {
            return Err(said(
                "ERR DB index is out of range: rackpool-kv has database 0 only; serve another \
                 --table for other keys",
            ));
        }
        Some(_) => return Err(said("ERR DB index is out of range")),
        None => return Err(said("ERR value is not an integer or out of range")),
    }
    Ok(())
}

pub(super) fn quit(context: &mut Context<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    context.session.ends = true;
    reply.simple("OK");
    Ok(())
}

pub(super) fn reset(
    context: &mut Context<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let session = &mut context.session;
    session.transaction = None;
    session.activity.transaction(None);
    session.forget_watched(&context.shared.watches);
    session.replies = Replies::On;
    session.resp3 = false;
    session.is_known = context.shared.password.is_none();
    reply.set_resp3(false);
    context.shared.clients.change(session.id, |client| {
        client.name.clear();
        client.resp3 = false;
    });
    reply.simple("RESET");
    Ok(())
}

fn authenticate(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> CommandResult {
    let Context { session, shared, .. } = context;
    let is_default = user == b"default";
    let is_right = is_default && shared.password.as_ref().is_none_or(|right| right.is(password));
    if shared.password.is_some() {
        let now = Instant::now();
        let delay = if is_right {
            session.auth_failures = 0;
            shared.auth_throttle.accepted(now)
        } else {
            session.auth_failures = session.auth_failures.saturating_add(1);
            shared.stats(context.thread).auth_failures.add(1);
            shared.auth_throttle.refused(session.auth_failures, now)
        };
        session.answers_at = (!delay.is_zero()).then(|| now + delay);
    }
    if !is_right {
        return Err(said("WRONGPASS invalid username-password pair or user is disabled."));
    }
    session.is_known = true;
    Ok(())
}

pub(super) fn auth(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match args.len() {
        2 if context.shared.password.is_none() => {
            return Err(said(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        2 => authenticate(context, b"default", args.at(1))?,
        3 => authenticate(context, args.at(1), args.at(2))?,
        _ => return Err(SYNTAX),
    }
    reply.simple("OK");
    Ok(())
}

pub(super) fn hello(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut version = None;
    if args.len() > 1 {
        let number = parse_integer(args.at(1))
            .ok_or(said("ERR Protocol version is not an integer or out of range"))?;
        if !(2..=3).contains(&number) {
            return Err(said("NOPROTO unsupported protocol version"));
        }
        version = Some(number == 3);
    }
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        let unknown = || {
            let word = String::from_utf8_lossy(word).into_owned();
            told(format!("ERR Syntax error in HELLO option '{word}'"))
        };
        if is(word, "auth") {
            let user = words.next().ok_or_else(unknown)?;
            authenticate(context, user, words.next().ok_or_else(unknown)?)?;
        } else if is(word, "setname") {
            // As in Redis, the name is set even if a later option is wrong.
            let name = super::client::valid_name(words.next().ok_or_else(unknown)?)?;
            context.shared.clients.change(context.session.id, |client| client.name = name);
        } else {
            return Err(unknown());
        }
    }
    if !context.session.is_known {
        return Err(said(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ));
    }
    if let Some(resp3) = version {
        context.session.resp3 = resp3;
        context.shared.clients.change(context.session.id, |client| client.resp3 = resp3);
        reply.set_resp3(resp3);
    }
    reply.map(7);
    reply.text("server");
    reply.text("redis");
    reply.text("version");
    reply.text(super::info::REDIS_VERSION);
    reply.text("proto");
    reply.integer(if reply.is_resp3() { 3 } else { 2 });
    reply.text("id");
    reply.integer(i64::try_from(context.session.id).unwrap_or(i64::MAX));
    reply.text("mode");
    reply.text("standalone");
    reply.text("role");
    reply.text("master");
    reply.text("modules");
    reply.array(0);
    Ok(())
}

/// `WAIT`: there are no replicas; an acknowledged write is in the pool.
pub(super) fn wait(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    integer(args.at(1))?;
    let timeout = parse_integer(args.at(2));
    if timeout.ok_or(said("ERR timeout is not an integer or out of range"))? < 0 {
        return Err(said("ERR timeout is negative"));
    }
    reply.integer(0);
    Ok(())
}

pub(super) fn time(_: &mut Context<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    reply.array(2);
    reply.text(&since.as_secs().to_string());
    reply.text(&since.subsec_micros().to_string());
    Ok(())
}
