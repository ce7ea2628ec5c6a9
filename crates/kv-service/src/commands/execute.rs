use rackpool_kv::now_ms;

use rackpool_sync::atomic::Ordering;

use super::arguments::is;
use super::subcommands::subcommand;
use super::table::{Command, find, wrong_number};
use super::{Context, MANY};
use crate::failure::{Failure, said, told};
use crate::resp::{Args, Reply};
use crate::session::Replies;

/// The most bytes of a queued transaction.
const MAX_TRANSACTION: usize = 256 << 20;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CommandOutcome {
    /// The answer is written, or the client does not want it.
    Answered,
    /// Nothing was done and nothing written: the command takes long, and other connections wait.
    TakesLong,
}

/// Executes a request and writes its answer.
pub fn execute(context: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandOutcome {
    let begin = reply.len();
    if is(args.at(0), "post") || is(args.at(0), "host:") {
        // A browser sends this on behalf of a web page. What follows must not be executed as
        // commands.
        context.session.ends = true;
        return CommandOutcome::Answered;
    }
    context.limit_walks();
    match dispatch(context, args, reply) {
        Err(Failure::Long) => {
            reply.truncate(begin);
            return CommandOutcome::TakesLong;
        }
        Err(failure) => fail(context, &failure, begin, reply),
        Ok(()) => {}
    }
    if reply.is_too_long() {
        reply.truncate(begin);
        reply.error("ERR the answer is too long for any client: ask for less at once");
        context.session.ends = true;
    }
    let silent = match context.session.replies {
        Replies::On => false,
        Replies::Off | Replies::Skip => true,
        Replies::SkipNext => {
            context.session.replies = Replies::Skip;
            reply.truncate(begin);
            return CommandOutcome::Answered;
        }
    };
    if silent {
        reply.truncate(begin);
        if context.session.replies == Replies::Skip {
            context.session.replies = Replies::On;
        }
    }
    CommandOutcome::Answered
}

/// Answers a request that was refused while its arguments arrived.
pub fn refuse_arrived(context: &mut Context<'_>, failure: &Failure, reply: &mut Reply<'_>) {
    context.session.break_transaction();
    fail(context, failure, reply.len(), reply);
}

/// Executes a command, by its handler for large strings if one is an argument or is met.
pub(super) fn run(
    command: &Command,
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let begin = reply.len();
    let done = if args.large().is_empty() {
        (command.run)(context, args, reply)
    } else {
        Err(Failure::LargeString)
    };
    match (done, command.large) {
        (Err(failure), Some(large)) if failure.is_of_length() => {
            reply.truncate(begin);
            large(context, args, reply)
        }
        (done, _) => done,
    }
}

/// Replaces the answer written after the first `begin` bytes by an error. If the daemon has
/// forgotten this client, it ends the service; if the pool is full, it makes the sweep hurry.
pub(super) fn fail(context: &Context<'_>, failure: &Failure, begin: usize, reply: &mut Reply<'_>) {
    reply.truncate(begin);
    if failure.is_forgotten() {
        context.shared.end(&failure.to_string());
    }
    if failure.is_out_of_memory() {
        context.shared.wants_memory.store(true, Ordering::Relaxed);
    }
    context.shared.stats(context.thread).errors.add(1);
    reply.error(&failure.to_string());
}

fn dispatch(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let command = match admit(context, args) {
        Ok(command) => command,
        Err(failure) => return Err(refuse(context, args, failure)),
    };
    if let Some(transaction) = &mut context.session.transaction
        && !command.runs_at_once
    {
        if transaction.bytes() > MAX_TRANSACTION {
            transaction.is_broken = true;
            return Err(said("ERR the transaction is too large: split it"));
        }
        transaction.push(args);
        transaction.needs_memory |= command.needs_memory();
        context.session.activity.transaction(context.session.transaction.as_ref());
        reply.simple("QUEUED");
        return Ok(());
    }
    context.give_way_if(args.len() > MANY)?;
    let done = run(command, context, args, reply);
    if !command.only_reads() {
        context.store.settle(&context.shared.memory, false);
    }
    // The thread that executes the command counts it.
    if !matches!(done, Err(Failure::Long)) {
        context.shared.stats(context.thread).commands.add(1);
    }
    done
}

/// Handles the failure of a command that cannot be executed as it was written: a transaction is
/// discarded (`EXEC`) or marked as broken.
fn refuse(context: &mut Context<'_>, args: Args<'_>, failure: Failure) -> Failure {
    if args.at(0).eq_ignore_ascii_case(b"exec") {
        context.session.transaction = None;
        context.session.activity.transaction(None);
        context.session.forget_watched(&context.shared.watches);
        let text = failure.to_string();
        let text = text.strip_prefix("ERR ").unwrap_or(&text);
        return told(format!("EXECABORT Transaction discarded because of: {text}"));
    }
    context.session.break_transaction();
    failure
}

/// The command of a request, if it exists, has allowed arguments, the client is authenticated, and
/// there is memory for the command.
fn admit(context: &mut Context<'_>, args: Args<'_>) -> Result<&'static Command, Failure> {
    let Some(command) = find(args.at(0)) else {
        context.session.activity.unknown();
        return Err(unknown(args));
    };
    match command.has_subcommands.then(|| subcommand(command.name, args)).flatten() {
        Some(subcommand) => context.session.activity.subcommand(subcommand),
        None => context.session.activity.command(command),
    }
    if !command.takes(args.len()) {
        return Err(wrong_number(command.name));
    }
    if !context.session.is_known && !command.needs_no_password {
        return Err(said("NOAUTH Authentication required."));
    }
    // As in Redis, whatever is queued needs memory, and `EXEC` if a queued command does.
    let needs_memory = match &context.session.transaction {
        None => command.needs_memory(),
        Some(transaction) if command.name == "exec" => transaction.needs_memory,
        Some(_) => !command.runs_at_once,
    };
    if needs_memory {
        context.make_room()?;
    }
    Ok(command)
}

/// The error of Redis for an unknown command.
fn unknown(args: Args<'_>) -> Failure {
    const SHOWN: usize = 128;
    let show = |bytes: &[u8], most: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
    };
    let mut others = String::new();
    for argument in args.from(1) {
        if others.len() >= SHOWN {
            break;
        }
        let room = SHOWN - others.len();
        others.push_str(&format!("'{}' ", show(argument, room)));
    }
    let name = show(args.at(0), SHOWN);
    told(format!("ERR unknown command '{name}', with args beginning with: {others}"))
}

/// The unit of an expiry argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpiryUnit {
    /// In seconds, else in milliseconds.
    is_seconds: bool,
    /// Since 1970, else from now on.
    is_absolute: bool,
}

impl ExpiryUnit {
    pub(super) const SECONDS: Self = Self { is_seconds: true, is_absolute: false };
    pub(super) const MILLISECONDS: Self = Self { is_seconds: false, is_absolute: false };
    pub(super) const UNIX_SECONDS: Self = Self { is_seconds: true, is_absolute: true };
    pub(super) const UNIX_MILLISECONDS: Self = Self { is_seconds: false, is_absolute: true };
}

/// Converts an expiry argument to milliseconds since 1970.
pub(super) fn expiry_ms(number: i64, unit: ExpiryUnit, command: &str) -> Result<i64, Failure> {
    let invalid = || told(format!("ERR invalid expire time in '{command}' command"));
    let ms = if unit.is_seconds { number.checked_mul(1000) } else { Some(number) };
    let base = if unit.is_absolute { 0 } else { i64::try_from(now_ms()).unwrap_or(i64::MAX) };
    ms.and_then(|ms| ms.checked_add(base)).ok_or_else(invalid)
}
