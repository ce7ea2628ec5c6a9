use super::execute::{self, fail};
use super::table::find;
use super::{CommandResult, Context, MANY};
use crate::failure::{Failure, said};
use crate::resp::{Args, Reply};
use crate::session::Transaction;

/// The most bytes of a connection's watched keys; the last one may exceed it.
const MAX_WATCHED: usize = 1 << 20;

pub(super) fn multi(
    context: &mut Context<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if context.session.transaction.is_some() {
        return Err(said("ERR MULTI calls can not be nested"));
    }
    context.session.transaction = Some(Transaction::default());
    context.session.activity.transaction(context.session.transaction.as_ref());
    reply.simple("OK");
    Ok(())
}

pub(super) fn discard(
    context: &mut Context<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if context.session.transaction.take().is_none() {
        return Err(said("ERR DISCARD without MULTI"));
    }
    context.session.activity.transaction(None);
    context.session.forget_watched(&context.shared.watches);
    reply.simple("OK");
    Ok(())
}

pub(super) fn watch(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    if context.session.transaction.is_some() {
        return Err(said("ERR WATCH inside MULTI is not allowed"));
    }
    for key in args.from(1) {
        if context.session.watched_bytes > MAX_WATCHED {
            return Err(said("ERR the watched keys are too many: UNWATCH some"));
        }
        if context.session.watched.iter().all(|(watched, _)| watched != key) {
            // The watch begins before the key is read, so no later change is missed.
            context.shared.watches.begin(key);
            match context.store.seen(key) {
                Ok(seen) => context.session.watch(key, seen),
                Err(failure) => {
                    context.shared.watches.end(key);
                    return Err(failure);
                }
            }
        }
    }
    reply.simple("OK");
    Ok(())
}

pub(super) fn unwatch(
    context: &mut Context<'_>,
    _: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    context.session.forget_watched(&context.shared.watches);
    reply.simple("OK");
    Ok(())
}

pub(super) fn exec(context: &mut Context<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let Some(transaction) = context.session.transaction.take() else {
        return Err(said("ERR EXEC without MULTI"));
    };
    let done = if transaction.is_broken {
        Err(said("EXECABORT Transaction discarded because of previous errors."))
    } else {
        let is_long = context.give_way_if(transaction.len() > MANY);
        is_long.and_then(|()| run(context, &transaction, reply))
    };
    if matches!(done, Err(Failure::Long)) {
        context.session.transaction = Some(transaction);
        return done;
    }
    // `CLIENT LIST`, also within the transaction itself, shows the transaction until here.
    context.session.activity.transaction(None);
    context.session.forget_watched(&context.shared.watches);
    done
}

fn run(
    context: &mut Context<'_>,
    transaction: &Transaction,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let before = reply.len();
    context.transact(|context| {
        reply.truncate(before);
        for (key, seen) in &context.session.watched {
            if context.store.seen(key)? != *seen {
                reply.null_array();
                return Ok(());
            }
        }
        reply.array(transaction.len());
        for args in transaction.commands() {
            let begin = reply.len();
            let result = match find(args.at(0)) {
                Some(command) => execute::run(command, context, args, reply),
                None => Err(said("ERR unknown command")),
            };
            if let Err(failure) = result {
                if failure.is_conflict() || failure.is_long() {
                    return Err(failure);
                }
                fail(context, &failure, begin, reply);
            }
            if reply.is_too_long() {
                break;
            }
        }
        Ok(())
    })
}
