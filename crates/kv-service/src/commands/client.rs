use super::arguments::{integer, lower};
use super::subcommands::{help, unknown_subcommand};
use super::{CommandResult, Context, MANY};
use crate::failure::{Failure, SYNTAX, said, told};
use crate::number::parse_integer;
use crate::resp::{Args, Reply};
use crate::session::Replies;
use crate::shared::ServiceState;

/// A client name, if it fits into a field of `CLIENT LIST`.
pub(super) fn valid_name(name: &[u8]) -> Result<String, Failure> {
    let refused = said("ERR Client names cannot contain spaces, newlines or special characters.");
    match String::from_utf8(name.to_vec()) {
        Ok(name) if name.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) => Ok(name),
        _ => Err(refused),
    }
}

/// The `CLIENT LIST` lines of the connections that the request selects.
fn list(shared: &ServiceState, args: Args<'_>) -> Result<String, Failure> {
    let chosen = match (lower(args.at(2)).as_str(), args.len()) {
        (_, 2) => None,
        ("type", 4) => {
            let kind = lower(args.at(3));
            match kind.as_str() {
                "normal" => None,
                // There are no connections of these types.
                "master" | "replica" | "slave" | "pubsub" => Some(Vec::new()),
                _ => return Err(told(format!("ERR Unknown client type '{kind}'"))),
            }
        }
        ("id", 4..) => {
            let number = |id| parse_integer(id).and_then(|id| u64::try_from(id).ok());
            let invalid = || said("ERR Invalid client ID");
            Some(args.from(3).map(|id| number(id).ok_or_else(invalid)).collect::<Result<_, _>>()?)
        }
        _ => return Err(SYNTAX),
    };
    Ok(shared.clients.list(|id| chosen.as_ref().is_none_or(|chosen| chosen.contains(&id))))
}

/// The connections that `CLIENT KILL` selects.
#[derive(Debug, Default)]
struct Doomed {
    id: Option<u64>,
    address: Option<String>,
    local: Option<String>,
    /// The request names a type of which there are no connections.
    nobody: bool,
    /// Exclude the requesting connection.
    spares_self: bool,
}

impl Doomed {
    fn parse(args: Args<'_>) -> Result<Self, Failure> {
        let mut doomed = Self { spares_self: true, ..Self::default() };
        let mut words = args.from(2);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(SYNTAX)?;
            match lower(word).as_str() {
                "id" => {
                    let invalid = said("ERR client-id should be greater than 0");
                    let id = parse_integer(value).and_then(|id| u64::try_from(id).ok());
                    doomed.id = Some(id.filter(|id| *id > 0).ok_or(invalid)?);
                }
                "addr" => doomed.address = Some(String::from_utf8_lossy(value).into_owned()),
                "laddr" => doomed.local = Some(String::from_utf8_lossy(value).into_owned()),
                "skipme" => match lower(value).as_str() {
                    "yes" => doomed.spares_self = true,
                    "no" => doomed.spares_self = false,
                    _ => return Err(SYNTAX),
                },
                "type" => match lower(value).as_str() {
                    "normal" => {}
                    "master" | "replica" | "slave" | "pubsub" => doomed.nobody = true,
                    kind => return Err(told(format!("ERR Unknown client type '{kind}'"))),
                },
                "user" if value == b"default" => {}
                "user" => {
                    let name = String::from_utf8_lossy(value).into_owned();
                    return Err(told(format!("ERR No such user '{name}'")));
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(doomed)
    }
}

fn kill(context: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let own = context.session.id;
    // A single argument is an address; then the own connection may be killed too.
    let is_old_form = args.len() == 3;
    let doomed = if is_old_form {
        let address = Some(String::from_utf8_lossy(args.at(2)).into_owned());
        Doomed { address, ..Doomed::default() }
    } else {
        Doomed::parse(args)?
    };
    let killed = context.shared.clients.kill(|id, client| {
        !(doomed.nobody || (doomed.spares_self && id == own))
            && doomed.id.is_none_or(|wanted| wanted == id)
            && doomed.address.as_ref().is_none_or(|wanted| *wanted == client.address)
            && doomed.local.as_ref().is_none_or(|wanted| *wanted == client.local)
    });
    if killed.contains(&own) {
        context.session.ends = true;
    }
    match (is_old_form, killed.is_empty()) {
        (true, true) => return Err(said("ERR No such client")),
        (true, false) => reply.simple("OK"),
        (false, _) => reply.count(killed.len()),
    }
    Ok(())
}

/// No connection ever blocks.
fn unblock(args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if args.len() == 4 && !matches!(lower(args.at(3)).as_str(), "timeout" | "error") {
        return Err(said("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
    }
    integer(args.at(2))?;
    reply.integer(0);
    Ok(())
}

pub(super) fn client(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let id = context.session.id;
    let clients = &context.shared.clients;
    match (lower(args.at(1)).as_str(), args.len()) {
        ("help", 2) => help("client", reply),
        ("id", 2) => reply.integer(i64::try_from(id).unwrap_or(i64::MAX)),
        ("getname", 2) => match clients.change(id, |client| client.name.clone()) {
            Some(name) if !name.is_empty() => reply.text(&name),
            _ => reply.null(),
        },
        ("setname", 3) => {
            let name = valid_name(args.at(2))?;
            clients.change(id, |client| client.name = name);
            reply.simple("OK");
        }
        ("setinfo", 4) => {
            let attribute = lower(args.at(2));
            let value = valid_name(args.at(3)).map_err(|_| {
                told(format!(
                    "ERR {attribute} cannot contain spaces, newlines or special characters."
                ))
            })?;
            match attribute.as_str() {
                "lib-name" => clients.change(id, |client| client.library = value),
                "lib-ver" => clients.change(id, |client| client.library_version = value),
                _ => return Err(told(format!("ERR Unrecognized option '{attribute}'"))),
            };
            reply.simple("OK");
        }
        ("list", _) => {
            context.give_way_if(clients.count() > MANY)?;
            reply.verbatim(&list(context.shared, args)?);
        }
        ("kill", 3..) => kill(context, args, reply)?,
        ("unblock", 3 | 4) => unblock(args, reply)?,
        ("info", 2) => {
            let line = clients.change(id, |client| client.line(id)).unwrap_or_default();
            reply.verbatim(&(line + "\n"));
        }
        ("no-evict" | "no-touch", 3) => match lower(args.at(2)).as_str() {
            "on" | "off" => reply.simple("OK"),
            _ => return Err(SYNTAX),
        },
        ("reply", 3) => match lower(args.at(2)).as_str() {
            "on" => {
                context.session.replies = Replies::On;
                reply.simple("OK");
            }
            "off" => context.session.replies = Replies::Off,
            "skip" if context.session.replies == Replies::On => {
                context.session.replies = Replies::SkipNext;
            }
            "skip" => {}
            _ => return Err(SYNTAX),
        },
        ("unpause", 2) => reply.simple("OK"),
        ("trackinginfo", 2) => {
            reply.map(3);
            reply.text("flags");
            reply.set(1);
            reply.text("off");
            reply.text("redirect");
            reply.integer(-1);
            reply.text("prefixes");
            reply.array(0);
        }
        ("getredir", 2) => reply.integer(-1),
        _ => return Err(unknown_subcommand("client", args)),
    }
    Ok(())
}
