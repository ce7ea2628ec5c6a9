use super::arguments::lower;
use super::subcommands::{help, unknown_subcommand};
use super::{CommandResult, Context};
use crate::failure::told;
use crate::glob;
use crate::large::MAX_STRING;
use crate::memory_limit::EvictionPolicy;
use crate::resp::{Args, Reply};
use crate::shared::Password;

/// The parameters of Redis that clients read, with the values that hold here.
fn parameters(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let shared = context.shared;
    vec![
        ("appendfsync", "no".into()),
        ("appendonly", "no".into()),
        ("bind", shared.listen.map_or_else(String::new, |listen| listen.ip().to_string())),
        ("databases", "1".into()),
        ("io-threads", shared.threads().to_string()),
        ("maxclients", shared.max_clients.to_string()),
        ("maxmemory", shared.memory.limit().to_string()),
        ("maxmemory-clients", shared.client_memory.limit().to_string()),
        ("maxmemory-policy", shared.memory.policy().name().into()),
        ("port", shared.listen.map_or(0, |listen| listen.port()).to_string()),
        ("proto-max-bulk-len", MAX_STRING.to_string()),
        // A client that may ask is authenticated.
        ("requirepass", shared.password.as_ref().map_or_else(String::new, Password::shown)),
        ("save", String::new()),
        ("timeout", "0".into()),
        ("unixsocket", shared.unix.as_ref().map_or_else(String::new, |p| p.display().to_string())),
    ]
}

/// Sets parameters: all of them, or none if one cannot be set.
fn set(context: &Context<'_>, args: Args<'_>) -> CommandResult {
    let memory = &context.shared.memory;
    let (mut limit, mut policy) = (None, None);
    let mut words = args.from(2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let name = lower(name);
        let refused = |why: String| {
            told(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
        };
        let is_repeated = match name.as_str() {
            "maxmemory" => {
                let bytes = memory_bytes(&lower(value));
                let bytes = bytes.ok_or_else(|| refused("argument must be a memory value".into()));
                limit.replace(bytes?).is_some()
            }
            "maxmemory-policy" => {
                let named = EvictionPolicy::named(&lower(value));
                let named = named.ok_or_else(|| {
                    refused(format!(
                        "argument(s) must be one of the \
                    following: {}",
                        EvictionPolicy::ALL.map(EvictionPolicy::name).join(", ")
                    ))
                });
                policy.replace(named?).is_some()
            }
            _ if parameters(context).iter().any(|(known, _)| *known == name) => {
                return Err(refused(
                    "can't set immutable config: start rackpool-kv with other options".into(),
                ));
            }
            _ => {
                return Err(told(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                )));
            }
        };
        if is_repeated {
            return Err(refused("duplicate parameter".into()));
        }
    }
    memory.set(limit.unwrap_or_else(|| memory.limit()), policy.unwrap_or_else(|| memory.policy()));
    Ok(())
}

/// A number of bytes as Redis reads it: `k` is 1000 and `kb` 1024, in any case.
fn memory_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

pub(super) fn config(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match (lower(args.at(1)).as_str(), args.len()) {
        ("help", 2) => help("config", reply),
        ("get", 3..) => {
            let patterns: Vec<String> = args.from(2).map(lower).collect();
            let mut found = parameters(context);
            found.retain(|(name, _)| {
                patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), name.as_bytes()))
            });
            reply.map(found.len());
            for (name, value) in found {
                // A parameter that was named is returned in the request's spelling.
                let named = args.from(2).find(|asked| asked.eq_ignore_ascii_case(name.as_bytes()));
                reply.bulk(named.unwrap_or(name.as_bytes()));
                reply.text(&value);
            }
        }
        ("set", len @ 4..) if len.is_multiple_of(2) => {
            set(context, args)?;
            reply.simple("OK");
        }
        ("resetstat", 2) => {
            context.shared.reset_totals();
            reply.simple("OK");
        }
        ("rewrite", 2) => {
            return Err(told("ERR The server is running without a config file".to_owned()));
        }
        _ => return Err(unknown_subcommand("config", args)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::memory_bytes;

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        let read = ["0", "1024", "7b", "1k", "1kb", "2m", "2mb", "3g", "3gb"].map(memory_bytes);
        let bytes = [0, 1024, 7, 1000, 1024, 2_000_000, 2 << 20, 3_000_000_000, 3 << 30];
        assert_eq!(read, bytes.map(Some));
        for text in ["", "b", "-1", "1.5g", "1 mb", "1tb", "20000000000gb", "mb1", "é"] {
            assert_eq!(memory_bytes(text), None, "{text}");
        }
    }
}
