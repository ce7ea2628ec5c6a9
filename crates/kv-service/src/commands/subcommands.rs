use super::table::{COMMANDS, Command, wrong_number};
use crate::failure::{Failure, told};
use crate::resp::{Args, Reply};

/// A subcommand, such as `CLIENT LIST`.
#[derive(Debug)]
pub struct Subcommand {
    /// The name of its command, in lower case.
    command: &'static str,
    /// Its own name, in lower case.
    name: &'static str,
    /// Both names, separated by `|`.
    full_name: &'static str,
    /// The number of arguments including both names; negative: the least number.
    arity: i64,
    /// The syntax of its arguments.
    arguments: &'static str,
    /// A summary in one line.
    summary: &'static str,
}

/// A subcommand with both names.
macro_rules! sub {
    ($command:literal, $name:literal, $arity:literal, $arguments:literal, $summary:literal) => {
        Subcommand {
            command: $command,
            name: $name,
            arity: $arity,
            full_name: concat!($command, "|", $name),
            arguments: $arguments,
            summary: $summary,
        }
    };
}

/// All subcommands.
#[rustfmt::skip]
static SUBCOMMANDS: &[Subcommand] = &[
    sub!("client", "getname", 2, "", "Gives the name of this connection."),
    sub!("client", "getredir", 2, "", "Gives -1: nothing is tracked."),
    sub!("client", "help", 2, "", "Gives these lines."),
    sub!("client", "id", 2, "", "Gives the number of this connection."),
    sub!("client", "info", 2, "", "Describes this connection, as LIST does."),
    sub!("client", "kill", -3, "<ip:port> | <ID id | ADDR ip:port | LADDR ip:port | TYPE type | USER name | SKIPME yes|no> ...", "Closes the connections that all of these filters select."),
    sub!("client", "list", -2, "[TYPE type | ID id ...]", "Lists the connections, one a line."),
    sub!("client", "no-evict", 3, "ON|OFF", "Changes nothing: no connection is ended to save memory."),
    sub!("client", "no-touch", 3, "ON|OFF", "Has no effect: the service does not record when keys are used."),
    sub!("client", "reply", 3, "ON|OFF|SKIP", "Turns the answers to this connection on or off; SKIP: only the next one off."),
    sub!("client", "setinfo", 4, "LIB-NAME|LIB-VER value", "Records the client library of this connection."),
    sub!("client", "setname", 3, "name", "Gives this connection a name."),
    sub!("client", "trackinginfo", 2, "", "Says that nothing is tracked."),
    sub!("client", "unblock", -3, "id [TIMEOUT|ERROR]", "Gives 0: no connection ever waits."),
    sub!("client", "unpause", 2, "", "Changes nothing: no connection is ever paused."),
    sub!("command", "count", 2, "", "Counts the commands."),
    sub!("command", "docs", -2, "[command ...]", "Describes commands and the version that introduced them."),
    sub!("command", "getkeys", -4, "command [argument ...]", "Lists the keys among the arguments of a command."),
    sub!("command", "getkeysandflags", -4, "command [argument ...]", "Lists the keys among the arguments of a command, and how the command uses them."),
    sub!("command", "help", 2, "", "Gives these lines."),
    sub!("command", "info", -2, "[command ...]", "Describes the arguments of commands; without a name, of all."),
    sub!("command", "list", -2, "[FILTERBY MODULE name | ACLCAT category | PATTERN pattern]", "Gives the names of the commands."),
    sub!("config", "get", -3, "pattern [pattern ...]", "Gives the parameters that fit a pattern, with their values."),
    sub!("config", "help", 2, "", "Gives these lines."),
    sub!("config", "resetstat", 2, "", "Resets the metrics of INFO."),
    sub!("config", "rewrite", 2, "", "Fails: there is no file of parameters."),
    sub!("config", "set", -4, "parameter value ...", "Fails: the options of rackpool-kv set the parameters."),
    sub!("object", "encoding", 3, "key", "Tells how the value of a key is kept."),
    sub!("object", "freq", 3, "key", "Fails: the service does not count how often keys are used."),
    sub!("object", "help", 2, "", "Gives these lines."),
    sub!("object", "refcount", 3, "key", "Gives 1 for a key that is there, and for a small integer what Redis gives: no two share a value."),
];

/// The subcommand that a request to `command` names, if it exists.
pub(super) fn subcommand(command: &str, args: Args<'_>) -> Option<&'static Subcommand> {
    let name = args.at(1);
    let is = |one: &&Subcommand| {
        one.command == command && name.eq_ignore_ascii_case(one.name.as_bytes())
    };
    SUBCOMMANDS.iter().find(is)
}

/// The subcommands of a command.
pub(super) fn subcommands_of(command: &Command) -> impl Iterator<Item = &'static Subcommand> {
    SUBCOMMANDS.iter().filter(|one| one.command == command.name)
}

/// The subcommand with this full name, in any case.
pub(super) fn find_subcommand(name: &[u8]) -> Option<(&'static Command, &'static Subcommand)> {
    let one = SUBCOMMANDS.iter().find(|one| name.eq_ignore_ascii_case(one.full_name.as_bytes()))?;
    Some((COMMANDS.iter().find(|command| command.name == one.command)?, one))
}

impl Subcommand {
    /// Both names, separated by `|`.
    pub(super) const fn full_name(&self) -> &'static str {
        self.full_name
    }

    /// The number of arguments, as in [`Command`].
    pub(super) const fn arity(&self) -> i64 {
        self.arity
    }

    /// Whether it accesses the data, as its command does.
    pub(super) fn uses_data(&self) -> bool {
        self.name != "help"
    }
}

/// The name of the command or subcommand at this address in the tables; the text of Redis if there
/// is none.
#[must_use]
pub fn name_at(address: usize) -> &'static str {
    let command = COMMANDS.iter().find(|one| std::ptr::from_ref(*one).addr() == address);
    let subcommand = SUBCOMMANDS.iter().find(|one| std::ptr::from_ref(*one).addr() == address);
    let name = command.map(|command| command.name);
    name.or_else(|| subcommand.map(|one| one.full_name)).unwrap_or("NULL")
}

/// The error of Redis for an unknown subcommand or wrong arguments.
pub(super) fn unknown_subcommand(command: &str, args: Args<'_>) -> Failure {
    if let Some(subcommand) = subcommand(command, args) {
        return wrong_number(subcommand.full_name);
    }
    let name = String::from_utf8_lossy(&args.at(1)[..args.at(1).len().min(128)]).into_owned();
    told(format!("ERR unknown subcommand '{name}'. Try {} HELP.", command.to_ascii_uppercase()))
}

/// Answers with the help text of a command's subcommands.
pub(super) fn help(command: &str, reply: &mut Reply<'_>) {
    let upper = command.to_ascii_uppercase();
    let all: Vec<&Subcommand> = SUBCOMMANDS.iter().filter(|one| one.command == command).collect();
    reply.array(1 + 2 * all.len());
    reply.simple(&format!("{upper} <subcommand> [<argument> ...]. The subcommands are:"));
    for one in all {
        let line = format!("{} {}", one.name.to_ascii_uppercase(), one.arguments);
        reply.simple(line.trim_end());
        reply.simple(&format!("    {}", one.summary));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_belongs_to_a_command_that_has_some_and_is_found_where_it_stands() {
        for one in SUBCOMMANDS {
            let command = COMMANDS.iter().find(|command| command.name == one.command).unwrap();
            assert!(command.has_subcommands, "{}", one.full_name);
            assert_eq!(name_at(std::ptr::from_ref(one).addr()), one.full_name);
            assert_eq!(name_at(std::ptr::from_ref(command).addr()), command.name);
        }
        assert_eq!(name_at(0), "NULL");
    }
}
