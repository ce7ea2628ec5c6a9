use std::sync::LazyLock;

use super::{
    Handler, client, config, connection, expiry, hashes, info, introspection, keys,
    large_strings as large, numbers, scan, sorted_sets as zsets, strings, transactions,
};
use crate::failure::{Failure, told};

/// A command, with what `COMMAND` returns about it.
#[derive(Debug)]
pub struct Command {
    /// The name, in lower case.
    pub name: &'static str,
    /// The number of arguments including the name; negative: the least number.
    pub arity: i64,
    /// The positions of the keys.
    pub keys: Keys,
    /// The group, as in `COMMAND DOCS`.
    pub group: &'static str,
    /// A summary in one line.
    pub summary: &'static str,
    /// Whether the command is executed within `MULTI` at once, not queued for `EXEC`.
    pub runs_at_once: bool,
    /// Whether an unauthenticated peer may use it.
    pub needs_no_password: bool,
    /// Whether its first argument is a subcommand.
    pub has_subcommands: bool,
    /// The first release of Redis with the command.
    pub since: &'static str,
    access: KeyAccess,
    /// Executes the command.
    pub run: Handler,
    /// Executes the command if one of its strings is too long for an entry.
    pub large: Option<Handler>,
}

/// The effect of a command on the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAccess {
    None,
    Reads,
    Writes,
    /// It writes, and fails in a full pool.
    Grows,
}

/// The positions of the keys: `first` to `last` (negative: from the end) in steps of `step`; 0:
/// none.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The first position.
    pub first: i64,
    /// The last position.
    pub last: i64,
    /// The distance of two keys.
    pub step: i64,
}

impl Keys {
    pub(super) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    const ONE: Self = Self { first: 1, last: 1, step: 1 };
    const ALL: Self = Self { first: 1, last: -1, step: 1 };
    const PAIRS: Self = Self { first: 1, last: -1, step: 2 };

    /// The positions of the keys among `args` arguments.
    #[must_use]
    pub fn places(self, args: usize) -> Vec<usize> {
        let count = i64::try_from(args).unwrap_or(i64::MAX);
        let last = if self.last < 0 { self.last.saturating_add(count) } else { self.last };
        let Ok(step) = usize::try_from(self.step) else { return Vec::new() };
        if self.first == 0 || step == 0 {
            return Vec::new();
        }
        let places = (self.first..=last).step_by(step);
        places.filter_map(|at| usize::try_from(at).ok()).collect()
    }
}

impl Command {
    /// Whether the command accepts `args` arguments, including its name.
    #[must_use]
    pub fn takes(&self, args: usize) -> bool {
        let count = i64::try_from(args).unwrap_or(i64::MAX);
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }

    /// Whether the command fails when there is no memory.
    #[must_use]
    pub fn needs_memory(&self) -> bool {
        self.access == KeyAccess::Grows
    }

    /// Whether the command only reads.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.access == KeyAccess::Reads
    }

    /// The flags in the answer of `COMMAND`.
    #[must_use]
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = match self.access {
            KeyAccess::None => Vec::new(),
            KeyAccess::Reads => vec!["readonly"],
            KeyAccess::Writes => vec!["write"],
            KeyAccess::Grows => vec!["write", "denyoom"],
        };
        if self.needs_no_password {
            flags.push("no_auth");
        }
        flags
    }

    /// The ACL categories of Redis that are of use here: the subject, and whether it reads or
    /// writes.
    #[must_use]
    pub fn categories(&self) -> Vec<&'static str> {
        let mut categories = match self.access {
            KeyAccess::None => Vec::new(),
            KeyAccess::Reads => vec!["@read"],
            KeyAccess::Writes | KeyAccess::Grows => vec!["@write"],
        };
        categories.push(match self.group {
            "string" => "@string",
            "hash" => "@hash",
            "sorted-set" => "@sortedset",
            "transactions" => "@transaction",
            "connection" => "@connection",
            "generic" | "server" if self.access != KeyAccess::None => "@keyspace",
            "generic" => "@connection",
            _ => "@admin",
        });
        categories
    }

    const fn at_once(mut self) -> Self {
        self.runs_at_once = true;
        self
    }

    const fn or(mut self, large: Handler) -> Self {
        self.large = Some(large);
        self
    }

    const fn of_many(mut self) -> Self {
        self.has_subcommands = true;
        self
    }

    const fn for_all(mut self) -> Self {
        self.needs_no_password = true;
        self
    }
}

const fn command(
    name: &'static str,
    since: &'static str,
    arity: i64,
    Role { group, access }: Role,
    keys: Keys,
    run: Handler,
    summary: &'static str,
) -> Command {
    let (runs_at_once, needs_no_password, has_subcommands) = (false, false, false);
    Command {
        name,
        arity,
        keys,
        group,
        summary,
        runs_at_once,
        needs_no_password,
        has_subcommands,
        since,
        access,
        run,
        large: None,
    }
}

/// The group of a command and its effect on the data.
#[derive(Clone, Copy)]
struct Role {
    group: &'static str,
    access: KeyAccess,
}

const STRING_READ: Role = Role { group: "string", access: KeyAccess::Reads };
const STRING_WRITE: Role = Role { group: "string", access: KeyAccess::Writes };
const STRING_GROWTH: Role = Role { group: "string", access: KeyAccess::Grows };
const KEY_READ: Role = Role { group: "generic", access: KeyAccess::Reads };
const KEY_WRITE: Role = Role { group: "generic", access: KeyAccess::Writes };
const HASH_READ: Role = Role { group: "hash", access: KeyAccess::Reads };
const HASH_WRITE: Role = Role { group: "hash", access: KeyAccess::Writes };
const HASH_GROWTH: Role = Role { group: "hash", access: KeyAccess::Grows };
const SET_READ: Role = Role { group: "sorted-set", access: KeyAccess::Reads };
const SET_WRITE: Role = Role { group: "sorted-set", access: KeyAccess::Writes };
const SET_GROWTH: Role = Role { group: "sorted-set", access: KeyAccess::Grows };
const GENERIC: Role = Role { group: "generic", access: KeyAccess::None };
const TRANSACTIONS: Role = Role { group: "transactions", access: KeyAccess::None };
const CONNECTION: Role = Role { group: "connection", access: KeyAccess::None };
const SERVER: Role = Role { group: "server", access: KeyAccess::None };
const SERVER_READ: Role = Role { group: "server", access: KeyAccess::Reads };
const SERVER_WRITE: Role = Role { group: "server", access: KeyAccess::Writes };

/// All commands.
#[rustfmt::skip]
pub static COMMANDS: &[Command] = &[
    command("get", "1.0.0", 2, STRING_READ, Keys::ONE, strings::get, "Gives the string of a key").or(large::get),
    command("set", "1.0.0", -3, STRING_GROWTH, Keys::ONE, strings::set, "Stores a string").or(large::set),
    command("setnx", "1.0.0", 3, STRING_GROWTH, Keys::ONE, strings::setnx, "Stores a string if the key is absent").or(large::setnx),
    command("setex", "2.0.0", 4, STRING_GROWTH, Keys::ONE, strings::setex, "Stores a string for some seconds").or(large::setex),
    command("psetex", "2.6.0", 4, STRING_GROWTH, Keys::ONE, strings::psetex, "Stores a string for some milliseconds").or(large::psetex),
    command("getset", "1.0.0", 3, STRING_GROWTH, Keys::ONE, strings::getset, "Stores a string and gives the old one").or(large::getset),
    command("getdel", "6.2.0", 2, STRING_WRITE, Keys::ONE, strings::getdel, "Deletes a key and gives its string").or(large::getdel),
    command("getex", "6.2.0", -2, STRING_WRITE, Keys::ONE, strings::getex, "Gives a string and sets its expiry").or(large::getex),
    command("mget", "1.0.0", -2, STRING_READ, Keys::ALL, strings::mget, "Gives the strings of some keys").or(large::mget),
    command("mset", "1.0.1", -3, STRING_GROWTH, Keys::PAIRS, strings::mset, "Stores some strings").or(large::mset),
    command("append", "2.0.0", 3, STRING_GROWTH, Keys::ONE, strings::append, "Appends to a string").or(large::append),
    command("strlen", "2.2.0", 2, STRING_READ, Keys::ONE, strings::strlen, "Gives the length of a string").or(large::strlen),
    command("getrange", "2.4.0", 4, STRING_READ, Keys::ONE, strings::getrange, "Gives a part of a string").or(large::getrange),
    command("substr", "1.0.0", 4, STRING_READ, Keys::ONE, strings::getrange, "Gives a part of a string").or(large::getrange),
    command("setrange", "2.2.0", 4, STRING_GROWTH, Keys::ONE, strings::setrange, "Overwrites a part of a string").or(large::setrange),
    command("incr", "1.0.0", 2, STRING_GROWTH, Keys::ONE, numbers::incr, "Adds 1 to a number").or(numbers::not_an_integer),
    command("decr", "1.0.0", 2, STRING_GROWTH, Keys::ONE, numbers::decr, "Subtracts 1 from a number").or(numbers::not_an_integer),
    command("incrby", "1.0.0", 3, STRING_GROWTH, Keys::ONE, numbers::incrby, "Adds to a number").or(numbers::not_an_integer),
    command("decrby", "1.0.0", 3, STRING_GROWTH, Keys::ONE, numbers::decrby, "Subtracts from a number").or(numbers::not_an_integer),
    command("incrbyfloat", "2.6.0", 3, STRING_GROWTH, Keys::ONE, numbers::incrbyfloat, "Adds to a floating-point number").or(numbers::not_a_float),
    command("del", "1.0.0", -2, KEY_WRITE, Keys::ALL, keys::del, "Deletes keys"),
    command("unlink", "4.0.0", -2, KEY_WRITE, Keys::ALL, keys::del, "Deletes keys"),
    command("exists", "1.0.0", -2, KEY_READ, Keys::ALL, keys::exists, "Counts which of some keys are there"),
    command("touch", "3.2.1", -2, KEY_READ, Keys::ALL, keys::exists, "Counts which of some keys are there"),
    command("type", "1.0.0", 2, KEY_READ, Keys::ONE, keys::type_of, "Gives the type of a value"),
    command("object", "2.2.3", -2, KEY_READ, Keys { first: 2, last: 2, step: 1 }, keys::object, "Tells how a value is kept").of_many(),
    command("persist", "2.2.0", 2, KEY_WRITE, Keys::ONE, keys::persist, "Removes the expiry of a key"),
    command("expire", "1.0.0", -3, KEY_WRITE, Keys::ONE, expiry::expire, "Lets a key expire in some seconds"),
    command("pexpire", "2.6.0", -3, KEY_WRITE, Keys::ONE, expiry::pexpire, "Lets a key expire in some milliseconds"),
    command("expireat", "1.2.0", -3, KEY_WRITE, Keys::ONE, expiry::expireat, "Lets a key expire at a second since 1970"),
    command("pexpireat", "2.6.0", -3, KEY_WRITE, Keys::ONE, expiry::pexpireat, "Lets a key expire at a millisecond since 1970"),
    command("ttl", "1.0.0", 2, KEY_READ, Keys::ONE, expiry::ttl, "Gives the seconds until a key expires"),
    command("pttl", "2.6.0", 2, KEY_READ, Keys::ONE, expiry::pttl, "Gives the milliseconds until a key expires"),
    command("expiretime", "7.0.0", 2, KEY_READ, Keys::ONE, expiry::expiretime, "Gives the second at which a key expires"),
    command("pexpiretime", "7.0.0", 2, KEY_READ, Keys::ONE, expiry::pexpiretime, "Gives the millisecond at which a key expires"),
    command("scan", "2.8.0", -2, KEY_READ, Keys::NONE, scan::scan, "Walks the keys in steps"),
    command("keys", "1.0.0", 2, KEY_READ, Keys::NONE, scan::keys, "Gives all keys that fit a pattern"),
    command("hset", "2.0.0", -4, HASH_GROWTH, Keys::ONE, hashes::hset, "Sets fields of a hash"),
    command("hmset", "2.0.0", -4, HASH_GROWTH, Keys::ONE, hashes::hmset, "Sets fields of a hash"),
    command("hsetnx", "2.0.0", 4, HASH_GROWTH, Keys::ONE, hashes::hsetnx, "Sets a field of a hash if it is absent"),
    command("hget", "2.0.0", 3, HASH_READ, Keys::ONE, hashes::hget, "Gives a field of a hash"),
    command("hmget", "2.0.0", -3, HASH_READ, Keys::ONE, hashes::hmget, "Gives fields of a hash"),
    command("hgetall", "2.0.0", 2, HASH_READ, Keys::ONE, hashes::hgetall, "Gives all fields of a hash"),
    command("hkeys", "2.0.0", 2, HASH_READ, Keys::ONE, hashes::hkeys, "Gives the names of a hash's fields"),
    command("hvals", "2.0.0", 2, HASH_READ, Keys::ONE, hashes::hvals, "Gives the values of a hash's fields"),
    command("hlen", "2.0.0", 2, HASH_READ, Keys::ONE, hashes::hlen, "Counts the fields of a hash"),
    command("hexists", "2.0.0", 3, HASH_READ, Keys::ONE, hashes::hexists, "Tells whether a field is there"),
    command("hstrlen", "3.2.0", 3, HASH_READ, Keys::ONE, hashes::hstrlen, "Gives the length of a field"),
    command("hdel", "2.0.0", -3, HASH_WRITE, Keys::ONE, hashes::hdel, "Deletes fields of a hash"),
    command("hincrby", "2.0.0", 4, HASH_GROWTH, Keys::ONE, hashes::hincrby, "Adds to a number in a hash"),
    command("hincrbyfloat", "2.6.0", 4, HASH_GROWTH, Keys::ONE, hashes::hincrbyfloat, "Adds to a floating-point number in a hash"),
    command("hscan", "2.8.0", -3, HASH_READ, Keys::ONE, hashes::hscan, "Gives the fields of a hash that fit a pattern"),
    command("zadd", "1.2.0", -4, SET_GROWTH, Keys::ONE, zsets::zadd, "Sets the scores of members of a sorted set"),
    command("zincrby", "1.2.0", 4, SET_GROWTH, Keys::ONE, zsets::zincrby, "Adds to the score of a member"),
    command("zrem", "1.2.0", -3, SET_WRITE, Keys::ONE, zsets::zrem, "Removes members of a sorted set"),
    command("zremrangebyscore", "1.2.0", 4, SET_WRITE, Keys::ONE, zsets::zremrangebyscore, "Removes members by their scores"),
    command("zscore", "1.2.0", 3, SET_READ, Keys::ONE, zsets::zscore, "Gives the score of a member"),
    command("zcard", "1.2.0", 2, SET_READ, Keys::ONE, zsets::zcard, "Counts the members of a sorted set"),
    command("zcount", "2.0.0", 4, SET_READ, Keys::ONE, zsets::zcount, "Counts members by their scores"),
    command("zrank", "2.0.0", 3, SET_READ, Keys::ONE, zsets::zrank, "Gives the position of a member"),
    command("zrevrank", "2.0.0", 3, SET_READ, Keys::ONE, zsets::zrevrank, "Gives the position of a member from the end"),
    command("zrange", "1.2.0", -4, SET_READ, Keys::ONE, zsets::zrange, "Gives members by position or score"),
    command("zrevrange", "1.2.0", -4, SET_READ, Keys::ONE, zsets::zrevrange, "Gives members by position, the last first"),
    command("zrangebyscore", "1.0.5", -4, SET_READ, Keys::ONE, zsets::zrangebyscore, "Gives members by score"),
    command("zrevrangebyscore", "2.2.0", -4, SET_READ, Keys::ONE, zsets::zrevrangebyscore, "Gives members by score, the greatest first"),
    command("zscan", "2.8.0", -3, SET_READ, Keys::ONE, zsets::zscan, "Gives the members that fit a pattern"),
    command("multi", "1.2.0", 1, TRANSACTIONS, Keys::NONE, transactions::multi, "Begins a transaction").at_once(),
    command("exec", "1.2.0", 1, TRANSACTIONS, Keys::NONE, transactions::exec, "Executes a transaction").at_once(),
    command("discard", "2.0.0", 1, TRANSACTIONS, Keys::NONE, transactions::discard, "Discards a transaction").at_once(),
    command("watch", "2.2.0", -2, TRANSACTIONS, Keys::ALL, transactions::watch, "Makes the next transaction depend on keys").at_once(),
    command("unwatch", "2.2.0", 1, TRANSACTIONS, Keys::NONE, transactions::unwatch, "Unwatches the watched keys"),
    command("ping", "1.0.0", -1, CONNECTION, Keys::NONE, connection::ping, "Answers"),
    command("echo", "1.0.0", 2, CONNECTION, Keys::NONE, connection::echo, "Gives its argument back"),
    command("select", "1.0.0", 2, CONNECTION, Keys::NONE, connection::select, "Selects database 0, the only one"),
    command("hello", "6.0.0", -1, CONNECTION, Keys::NONE, connection::hello, "Negotiates the version of the protocol").for_all(),
    command("auth", "1.0.0", -2, CONNECTION, Keys::NONE, connection::auth, "Authenticates the connection").for_all(),
    command("quit", "1.0.0", -1, CONNECTION, Keys::NONE, connection::quit, "Closes the connection").at_once().for_all(),
    command("reset", "6.2.0", 1, CONNECTION, Keys::NONE, connection::reset, "Resets the connection").at_once().for_all(),
    command("client", "2.4.0", -2, CONNECTION, Keys::NONE, client::client, "Manages connections").of_many(),
    command("wait", "3.0.0", 3, GENERIC, Keys::NONE, connection::wait, "Gives the number of replicas: 0"),
    command("time", "2.6.0", 1, SERVER, Keys::NONE, connection::time, "Gives the time"),
    command("dbsize", "1.0.0", 1, SERVER_READ, Keys::NONE, keys::dbsize, "Counts the keys"),
    command("flushdb", "1.0.0", -1, SERVER_WRITE, Keys::NONE, keys::flush, "Deletes all keys"),
    command("flushall", "1.0.0", -1, SERVER_WRITE, Keys::NONE, keys::flush, "Deletes all keys"),
    command("info", "1.0.0", -1, SERVER, Keys::NONE, info::info, "Describes the service"),
    command("config", "2.0.0", -2, SERVER, Keys::NONE, config::config, "Gives the configuration").of_many(),
    command("command", "2.8.13", -1, SERVER, Keys::NONE, introspection::command, "Describes the commands").of_many(),
];

/// The commands in the order of their [numbers](number).
static INDEX: LazyLock<Vec<(u128, &'static Command)>> = LazyLock::new(|| {
    let numbered = |command: &'static Command| (number(command.name.as_bytes()), command);
    let mut index: Vec<_> = COMMANDS.iter().map(numbered).collect();
    index.sort_unstable_by_key(|(number, _)| *number);
    index
});

/// The bytes of a command's name as a number: searching for one is several times faster than
/// hashing a string. 0, which is no command's number, if the name is too long.
#[inline]
fn number(name: &[u8]) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    let Some(first) = bytes.get_mut(..name.len()) else { return 0 };
    first.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    u128::from_le_bytes(bytes)
}

/// The command with this name, in any case.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    let found = INDEX.binary_search_by_key(&number(name), |(number, _)| *number).ok()?;
    let (_, command) = *INDEX.get(found)?;
    // Zeros at the end are not in the number.
    (command.name.len() == name.len()).then_some(command)
}

/// The error of Redis for a wrong number of arguments.
pub(super) fn wrong_number(command: &str) -> Failure {
    told(format!("ERR wrong number of arguments for '{command}' command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for command in COMMANDS {
            let found = find(command.name.to_ascii_uppercase().as_bytes());
            assert_eq!(found.map(|found| found.name), Some(command.name));
        }
        for other in [&b""[..], &[b'a'; 100], b"get\0", b"\0", b"ge"] {
            assert!(find(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let places = |name: &[u8], args| find(name).unwrap().keys.places(args);
        assert_eq!(places(b"mset", 5), [1, 3]);
        assert_eq!(places(b"del", 3), [1, 2]);
        assert_eq!(places(b"get", 2), [1]);
        assert!(places(b"ping", 2).is_empty());
    }
}
