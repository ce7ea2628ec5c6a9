use std::fmt::Write;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use super::Context;
use super::arguments::lower;
use crate::failure::Failure;
use crate::resp::{Args, Reply};
use crate::shared::KeyspaceCount;
use crate::store::Keyspace;

/// The release of Redis whose behaviour this service implements.
pub(super) const REDIS_VERSION: &str = "7.0.15";

const SECTIONS: [&str; 7] =
    ["server", "clients", "memory", "stats", "replication", "cpu", "keyspace"];

pub(super) fn info(
    context: &mut Context<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let wanted: Vec<String> = args.from(1).map(lower).collect();
    let all = |name: &String| ["all", "default", "everything"].contains(&name.as_str());
    let everything = wanted.is_empty() || wanted.iter().any(all);
    let mut text = String::new();
    for section in SECTIONS {
        if everything || wanted.iter().any(|name| name == section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write_section(context, section, &mut text)?;
        }
    }
    reply.verbatim(&text);
    Ok(())
}

fn write_section(
    context: &mut Context<'_>,
    section: &str,
    text: &mut String,
) -> Result<(), Failure> {
    let shared = context.shared;
    let (title, lines) = match section {
        "server" => ("Server", server(context)),
        "clients" => (
            "Clients",
            vec![
                ("connected_clients", shared.clients.count().to_string()),
                ("maxclients", shared.max_clients.to_string()),
                ("blocked_clients", "0".into()),
            ],
        ),
        "memory" => ("Memory", memory(context)),
        "stats" => {
            let total = shared.totals();
            let lines = vec![
                ("total_connections_received", total.connections.to_string()),
                ("total_commands_processed", total.commands.to_string()),
                ("total_error_replies", total.errors.to_string()),
                ("expired_keys", total.expired.to_string()),
                ("evicted_keys", total.keys_evicted.to_string()),
                ("evicted_clients", total.evicted.to_string()),
                ("rejected_connections", total.rejected.to_string()),
                ("acl_access_denied_auth", total.auth_failures.to_string()),
            ];
            ("Stats", lines)
        }
        "replication" => {
            ("Replication", vec![("role", "master".into()), ("connected_slaves", "0".into())])
        }
        "cpu" => ("CPU", cpu(context)),
        _ => {
            let Keyspace { keys, expiring, mean_ttl_ms } = keyspace(context)?;
            let line = format!("keys={keys},expires={expiring},avg_ttl={mean_ttl_ms}");
            ("Keyspace", if keys == 0 { Vec::new() } else { vec![("db0", line)] })
        }
    };
    text.push_str(&format!("# {title}\r\n"));
    for (name, value) in lines {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{name}:{value}\r\n");
    }
    Ok(())
}

/// The number of keys now, or, if counting takes long, the last count: frequent `INFO` requests
/// must not delay other clients.
fn keyspace(context: &mut Context<'_>) -> Result<Keyspace, Failure> {
    /// A count up to this long is always repeated; a longer one after `PART` times its duration.
    const SHORT: Duration = Duration::from_millis(2);
    const PART: u32 = 20;
    let last = *context.shared.keyspace.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(KeyspaceCount { keyspace, at, took }) = last
        && took > SHORT
        && at.elapsed() < took.saturating_mul(PART)
    {
        return Ok(keyspace);
    }
    context.give_way_if(true)?;
    let begin = Instant::now();
    let keyspace = context.store.keyspace()?;
    let counted = Some(KeyspaceCount { keyspace, at: Instant::now(), took: begin.elapsed() });
    *context.shared.keyspace.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    Ok(keyspace)
}

/// The processor time of this process.
fn cpu(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        for (name, time) in
            [("used_cpu_sys", usage.system_time()), ("used_cpu_user", usage.user_time())]
        {
            lines.push((name, format!("{}.{:06}", time.tv_sec(), time.tv_usec())));
        }
    }
    lines.push(("used_cpu_threads", context.shared.threads().to_string()));
    lines
}

fn server(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let shared = context.shared;
    let uptime = shared.started.elapsed().as_secs();
    vec![
        ("redis_version", REDIS_VERSION.into()),
        ("rackpool_version", env!("CARGO_PKG_VERSION").into()),
        ("redis_mode", "standalone".into()),
        ("os", std::env::consts::OS.into()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", std::process::id().to_string()),
        ("run_id", shared.run_id.clone()),
        ("tcp_port", shared.listen.map_or(0, |listen| listen.port()).to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86400).to_string()),
        ("rack", shared.pool.rack().0.to_string()),
        ("table", shared.table.clone()),
    ]
}

/// The memory in use, from the rack's daemon: the data is in the pool, and this process holds only
/// connections' buffers. `used_memory_dataset` is what is compared with `maxmemory`.
fn memory(context: &Context<'_>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Ok(status) = context.shared.pool.rack_status() {
        let total = u64::from(status.frames) * context.shared.pool.page_bytes();
        lines.push(("used_memory", status.allocated_bytes.to_string()));
        lines.push(("total_system_memory", total.to_string()));
    }
    if let Some(used) = context.shared.memory.used() {
        lines.push(("used_memory_dataset", used.to_string()));
    }
    lines.push(("mem_clients_normal", context.shared.client_memory.held().to_string()));
    lines.push(("maxmemory_clients", context.shared.client_memory.limit().to_string()));
    lines.push(("maxmemory", context.shared.memory.limit().to_string()));
    lines.push(("maxmemory_policy", context.shared.memory.policy().name().into()));
    lines
}
