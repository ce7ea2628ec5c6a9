use super::Context;
use super::options::lower;
use super::subcommands::{help, unknown_subcommand};
use super::table::{COMMANDS, Command, find};
use crate::failure::{Failure, SYNTAX, said};
use crate::glob;
use crate::resp::{Args, Reply};

type Done = Result<(), Failure>;

pub(super) fn command(_: &mut Context<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Done {
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
                match find(name) {
                    Some(command) => describe(command, reply),
                    None => reply.null(),
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
        ("list", 2) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| reply.text(command.name));
        }
        ("list", 3..) => {
            let (by, what) = (lower(args.at(2)), lower(args.at(3)));
            if args.len() != 5 || by != "filterby" {
                return Err(SYNTAX);
            }
            let category = format!("@{}", lower(args.at(4)));
            let fits = |command: &&Command| match what.as_str() {
                "pattern" => Ok(glob::matches(args.at(4), command.name.as_bytes())),
                "aclcat" => Ok(command.categories().contains(&category.as_str())),
                // There are none.
                "module" => Ok(false),
                _ => Err(SYNTAX),
            };
            let mut names = Vec::new();
            for command in COMMANDS {
                if fits(&command)? {
                    names.push(command.name);
                }
            }
            reply.array(names.len());
            names.iter().for_each(|name| reply.text(name));
        }
        ("getkeys", 4..) => {
            let command = find(args.at(2)).ok_or(said("ERR Invalid command specified"))?;
            if !command.takes(args.len() - 2) {
                return Err(said("ERR Invalid number of arguments specified for command"));
            }
            let places = command.keys.places(args.len() - 2);
            if places.is_empty() {
                return Err(said("ERR The command has no key arguments"));
            }
            reply.array(places.len());
            places.iter().for_each(|at| reply.bulk(args.at(at + 2)));
        }
        _ => return Err(unknown_subcommand("command", args)),
    }
    Ok(())
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    reply.array(10);
    reply.text(command.name);
    reply.integer(command.arity);
    let flags = command.flags();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    reply.integer(command.keys.first);
    reply.integer(command.keys.last);
    reply.integer(command.keys.step);
    let categories = command.categories();
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.simple(category));
    // Tips, key specifications, subcommands.
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
