use super::arguments::lower;
use super::subcommands::{help, unknown_subcommand};
use super::{CommandResult, Context};
use crate::failure::told;
use crate::glob;
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
        ("maxmemory", "0".into()),
        ("maxmemory-clients", shared.client_memory.limit().to_string()),
        ("maxmemory-policy", "noeviction".into()),
        ("port", shared.listen.map_or(0, |listen| listen.port()).to_string()),
        ("proto-max-bulk-len", shared.longest_entry.to_string()),
        // A client that may ask is authenticated.
        ("requirepass", shared.password.as_ref().map_or_else(String::new, Password::shown)),
        ("save", String::new()),
        ("timeout", "0".into()),
        ("unixsocket", shared.unix.as_ref().map_or_else(String::new, |p| p.display().to_string())),
    ]
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
        ("set", 4..) => {
            let name = lower(args.at(2));
            let is_known = parameters(context).iter().any(|(known, _)| *known == name);
            return Err(told(if is_known {
                format!(
                    "ERR CONFIG SET failed (possibly related to argument '{name}') - can't set \
                     immutable config: start rackpool-kv with other options"
                )
            } else {
                format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            }));
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
