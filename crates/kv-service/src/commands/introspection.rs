use super::arguments::{is, lower};
use super::subcommands::{Subcommand, find_subcommand, help, subcommands_of, unknown_subcommand};
use super::table::{COMMANDS, Command, Keys, find};
use super::{CommandResult, Context};
use crate::failure::{Failure, SYNTAX, said};
use crate::glob;
use crate::resp::{Args, Reply};

pub(super) fn command(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if args.len() == 1 {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|command| describe(command, reply));
        return Ok(());
    }
    match (lower(args.at(1)).as_str(), args.len()) {
        ("help", 2) => help("command", reply),
        ("count", 2) => reply.count(COMMANDS.len()),
        ("info", 2) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(command, reply));
        }
        ("info", _) => {
            reply.array(args.len() - 2);
            for name in args.from(2) {
                match (find(name), find_subcommand(name)) {
                    (Some(command), _) => describe(command, reply),
                    (None, Some((command, one))) => describe_subcommand(command, one, reply),
                    (None, None) => reply.null(),
                }
            }
        }
        ("docs", _) => {
            let wanted: Vec<&Command> = if args.len() == 2 {
                COMMANDS.iter().collect()
            } else {
                args.from(2).filter_map(find).collect()
            };
            reply.map(wanted.len());
            wanted.iter().for_each(|command| document(command, reply));
        }
        ("list", 2) => list(names().map(|(_, name)| name), reply),
        ("list", 3..) => list(filtered(args)?.into_iter(), reply),
        ("getkeys", 4..) => keys_of(args, false, reply)?,
        ("getkeysandflags", 4..) => keys_of(args, true, reply)?,
        _ => return Err(unknown_subcommand("command", args)),
    }
    Ok(())
}

fn list(names: impl Iterator<Item = &'static str>, reply: &mut Reply<'_>) {
    let names: Vec<&str> = names.collect();
    reply.array(names.len());
    names.iter().for_each(|name| reply.text(name));
}

/// The names that match the filter of a `COMMAND LIST` request.
fn filtered(args: Args<'_>) -> Result<Vec<&'static str>, Failure> {
    let (by, what) = (lower(args.at(2)), lower(args.at(3)));
    if args.len() != 5 || by != "filterby" {
        return Err(SYNTAX);
    }
    let category = format!("@{}", lower(args.at(4)));
    let mut fitting = Vec::new();
    for (command, name) in names() {
        let fits = match what.as_str() {
            "pattern" => glob::matches(args.at(4), name.as_bytes()),
            "aclcat" => command.categories().contains(&category.as_str()),
            // There are no modules.
            "module" => false,
            _ => return Err(SYNTAX),
        };
        if fits {
            fitting.push(name);
        }
    }
    Ok(fitting)
}

/// Answers with the arguments of a command that are keys and, with `with_flags`, their flags.
fn keys_of(args: Args<'_>, with_flags: bool, reply: &mut Reply<'_>) -> CommandResult {
    let command = find(args.at(2)).ok_or(said("ERR Invalid command specified"))?;
    if !command.takes(args.len() - 2) {
        return Err(said("ERR Invalid number of arguments specified for command"));
    }
    let places = command.keys.places(args.len() - 2);
    if places.is_empty() {
        return Err(said("ERR The command has no key arguments"));
    }
    reply.array(places.len());
    let flags = key_flags(command, args);
    for at in places {
        if with_flags {
            reply.array(2);
        }
        reply.bulk(args.at(at + 2));
        if with_flags {
            reply.set(flags.len());
            flags.iter().for_each(|flag| reply.simple(flag));
        }
    }
    Ok(())
}

/// The names of all commands and subcommands, each with its command.
fn names() -> impl Iterator<Item = (&'static Command, &'static str)> {
    COMMANDS.iter().flat_map(|command| {
        let others = subcommands_of(command).map(|one| one.full_name());
        std::iter::once(command.name).chain(others).map(move |name| (command, name))
    })
}

/// How a command uses its keys, in the words of Redis: whether it reads, writes, overwrites or
/// removes them, and how it uses their values. `args` are those of `COMMAND GETKEYSANDFLAGS`.
fn key_flags(command: &Command, args: Args<'_>) -> &'static [&'static str] {
    match command.name {
        "exists" | "touch" | "type" | "object" | "watch" | "strlen" | "hlen" | "hexists"
        | "hstrlen" | "zcard" => &["RO"],
        "set" if args.from(5).any(|word| is(word, "get")) => &["RW", "access", "update"],
        "set" | "mset" | "setex" | "psetex" => &["OW", "update"],
        "setnx" => &["OW", "insert"],
        "del" | "unlink" => &["RM", "delete"],
        "getdel" => &["RW", "access", "delete"],
        "getset" | "getex" | "incr" | "decr" | "incrby" | "decrby" | "incrbyfloat" | "hincrby"
        | "hincrbyfloat" | "zincrby" => &["RW", "access", "update"],
        "append" | "hsetnx" => &["RW", "insert"],
        "hdel" | "zrem" | "zremrangebyscore" => &["RW", "delete"],
        _ if command.flags().contains(&"readonly") => &["RO", "access"],
        _ => &["RW", "update"],
    }
}

/// Writes name, arity, flags, keys and categories of a command; the caller writes three more lists.
fn describe_as(
    name: &str,
    arity: i64,
    flags: &[&str],
    keys: Keys,
    categories: &[&str],
    reply: &mut Reply<'_>,
) {
    reply.array(10);
    reply.text(name);
    reply.integer(arity);
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    reply.integer(keys.first);
    reply.integer(keys.last);
    reply.integer(keys.step);
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.simple(category));
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    let (flags, categories) = (command.flags(), command.categories());
    describe_as(command.name, command.arity, &flags, command.keys, &categories, reply);
    // Tips, key specifications, subcommands.
    reply.array(0);
    reply.array(0);
    reply.array(subcommands_of(command).count());
    subcommands_of(command).for_each(|one| describe_subcommand(command, one, reply));
}

fn describe_subcommand(command: &Command, one: &Subcommand, reply: &mut Reply<'_>) {
    let (flags, keys) =
        if one.uses_data() { (command.flags(), command.keys) } else { (Vec::new(), Keys::NONE) };
    describe_as(one.full_name(), one.arity(), &flags, keys, &command.categories(), reply);
    reply.array(0);
    reply.array(0);
    reply.array(0);
}

fn document(command: &Command, reply: &mut Reply<'_>) {
    reply.text(command.name);
    reply.map(3);
    reply.text("summary");
    reply.text(command.summary);
    reply.text("since");
    reply.text(command.since);
    reply.text("group");
    reply.text(command.group);
}
