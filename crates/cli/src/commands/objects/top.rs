//! `rackpool objects top`: what a store takes in each rack, live, and its first objects.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rackpool_kv::now_ms;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{RackUsage, Store, StoreOptions, StoreUsage, UsageOrder};
use rackpool_output::{outln, print};
use serde_json::{Value, json};

use super::id::Bytes;
use super::text::age;
use super::{WhichStore, json as objects_json};
use crate::commands::json::iso;
use crate::commands::roots::printable;
use crate::commands::signals::Interrupts;
use crate::commands::top::{Screen, interval};

/// A look at all objects takes at most this share of the time.
const SHARE: u32 = 5;

/// What is shown, and how often.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// Order of the objects: the largest first, the last used first, or those that were unused for
    /// longest first.
    #[arg(long, value_name = "ORDER", default_value = "size")]
    sort: Sort,
    /// Maximum number of objects to show: 0 to 1000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=1000))]
    objects: u16,
    /// Interval between two samples, in seconds: 0.1 to 3600. It is longer if the store has so many
    /// objects that looking at them would take a fifth of the time.
    #[arg(long, default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Print one sample and end. This is the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each sample. docs/design/seeing.md describes the format.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sort {
    Size,
    LastUse,
    Unused,
}

/// The store at one point in time.
#[derive(Clone, Debug)]
struct Look {
    at: Instant,
    /// How long the look took.
    took: Duration,
    usage: StoreUsage,
    options: StoreOptions,
}

/// Shows the store until a signal arrives.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let store = options.which.open()?;
    let interval = Duration::from_secs_f64(options.interval);
    let mut before = look(&store, options)?;
    if options.json || options.once || !std::io::stdout().is_terminal() {
        loop {
            // Rates need two samples.
            std::thread::sleep(interval.max(SHARE * before.took));
            let now = look(&store, options)?;
            if options.json {
                outln!("{}", as_json(&options.which.store, &before, &now))?;
            } else {
                print(format_args!("{}", text(&options.which.store, &before, &now, now_ms())))?;
            }
            if options.once || !options.json {
                return Ok(());
            }
            before = now;
        }
    }
    let interrupts = Interrupts::catch()?;
    let mut screen = Screen::open()?;
    let mut due = Instant::now();
    let ended = interrupts.wait(|| {
        if Instant::now() < due {
            return None;
        }
        let shown = look(&store, options).and_then(|now| {
            let text = text(&options.which.store, &before, &now, now_ms());
            due = Instant::now() + interval.max(SHARE * now.took);
            before = now;
            Ok(screen.show(&text)?)
        });
        shown.err().map(Err)
    })?;
    drop(screen);
    ended.unwrap_or(Ok(()))
}

fn look(store: &Store, options: &Options) -> anyhow::Result<Look> {
    let begin = Instant::now();
    let order = match options.sort {
        Sort::Size => UsageOrder::Size,
        Sort::LastUse => UsageOrder::LastUse,
        Sort::Unused => UsageOrder::Unused,
    };
    let usage = store.usage(options.objects.into(), order)?;
    Ok(Look { at: Instant::now(), took: begin.elapsed(), usage, options: store.options()? })
}

/// The change of a rack's objects and memory per second, which is negative if more went than came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    objects: f64,
    bytes: f64,
}

impl Rate {
    #[expect(clippy::cast_precision_loss, reason = "numbers for people")]
    fn between(before: &RackUsage, now: &RackUsage, wait: Duration) -> Self {
        let seconds = wait.as_secs_f64().max(1e-3);
        let rate = |before: u64, now: u64| (now as f64 - before as f64) / seconds;
        Self {
            objects: rate(before.objects + before.replicas, now.objects + now.replicas),
            bytes: rate(memory(before), memory(now)),
        }
    }
}

const fn memory(usage: &RackUsage) -> u64 {
    usage.object_bytes.saturating_add(usage.replica_bytes)
}

/// The racks of two looks, with what each takes now and how that changes.
fn racks(before: &Look, now: &Look) -> Vec<(RackId, RackUsage, Rate)> {
    let wait = now.at.saturating_duration_since(before.at);
    let (old, new) = (&before.usage.racks, &now.usage.racks);
    let mut racks: Vec<RackId> = old.keys().chain(new.keys()).copied().collect();
    racks.sort_unstable();
    racks.dedup();
    let of = |rack: &RackId, looked: &StoreUsage| looked.racks.get(rack).copied();
    let row = |rack: RackId| {
        let usage = of(&rack, &now.usage).unwrap_or_default();
        let before = of(&rack, &before.usage).unwrap_or_default();
        (rack, usage, Rate::between(&before, &usage, wait))
    };
    racks.into_iter().map(row).collect()
}

fn text(store: &str, before: &Look, now: &Look, now_ms: u64) -> String {
    let mut lines = Vec::new();
    let capacity = now.options.capacity.map(ByteSize);
    let capacity = capacity.map_or_else(|| "no limit".into(), |bytes| format!("{bytes} a rack"));
    lines.push(format!("store '{}', capacity {capacity}", printable(store)));
    lines.push(String::new());
    lines.push(format!(
        "{:<8} {:>9} {:>10} {:>9} {:>10} {:>10} {:>6} {:>10} {:>12}",
        "rack", "objects", "memory", "replicas", "memory", "files", "full", "objects/s", "memory/s"
    ));
    for (rack, usage, rate) in racks(before, now) {
        lines.push(format!(
            "{:<8} {:>9} {:>10} {:>9} {:>10} {:>10} {:>6} {:>10} {:>12}",
            rack.to_string(),
            usage.objects,
            ByteSize(usage.object_bytes).to_string(),
            usage.replicas,
            ByteSize(usage.replica_bytes).to_string(),
            ByteSize(usage.spilled_bytes).to_string(),
            full(memory(&usage), now.options.capacity),
            format!("{:+.1}", rate.objects),
            signed(rate.bytes),
        ));
    }
    for (rack, why) in &now.usage.unknown {
        lines.push(format!("replicas in {rack} are not known: {why}"));
    }
    lines.push(String::new());
    lines.push(format!("{:>10} {:<8} {:>9} {:>9}  ID", "SIZE", "RACK", "AGE", "LAST USE"));
    for object in &now.usage.first {
        let info = &object.info;
        lines.push(format!(
            "{:>10} {:<8} {:>9} {:>9}  {}",
            ByteSize(info.bytes).to_string(),
            info.rack.to_string(),
            age(info.created_ms, now_ms),
            if object.last_use_ms == 0 { "-".into() } else { age(object.last_use_ms, now_ms) },
            Bytes(info.id.clone())
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The share of the capacity, in percent.
fn full(bytes: u64, capacity: Option<u64>) -> String {
    match capacity {
        Some(capacity @ 1..) => format!("{} %", u128::from(bytes) * 100 / u128::from(capacity)),
        _ => "-".into(),
    }
}

/// A change of memory per second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number for people")]
fn signed(bytes: f64) -> String {
    let size = ByteSize(bytes.abs().round() as u64);
    match size.0 {
        0 => "0 B".into(),
        _ if bytes < 0.0 => format!("-{size}"),
        _ => format!("+{size}"),
    }
}

fn as_json(store: &str, before: &Look, now: &Look) -> Value {
    let rack = |(rack, usage, rate): (RackId, RackUsage, Rate)| {
        json!({
            "rack": rack.0,
            "objects": usage.objects,
            "object_bytes": usage.object_bytes,
            "replicas": usage.replicas,
            "replica_bytes": usage.replica_bytes,
            "spilled": usage.spilled,
            "spilled_bytes": usage.spilled_bytes,
            "objects_per_second": rate.objects,
            "bytes_per_second": rate.bytes,
        })
    };
    let object = |object: &rackpool_objects::UsedObject| {
        let mut value = objects_json::object(&object.info);
        value["last_use"] = (object.last_use_ms > 0).then(|| iso(object.last_use_ms)).into();
        value
    };
    let unknown = now.usage.unknown.iter();
    json!({
        "time": iso(now_ms()),
        "seconds": now.at.saturating_duration_since(before.at).as_secs_f64(),
        "store": store,
        "capacity": now.options.capacity,
        "racks": racks(before, now).into_iter().map(rack).collect::<Vec<_>>(),
        "objects": now.usage.first.iter().map(object).collect::<Vec<_>>(),
        "not_looked_at":
            unknown.map(|(rack, why)| json!({"rack": rack.0, "reason": why})).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_changes_per_second_and_the_share_of_the_capacity() {
        let at = Instant::now();
        let usage = |objects: u64| RackUsage {
            objects,
            object_bytes: objects << 20,
            ..RackUsage::default()
        };
        let look = |at, racks: &[(u16, u64)]| Look {
            at,
            took: Duration::ZERO,
            usage: StoreUsage {
                racks: racks.iter().map(|(rack, count)| (RackId(*rack), usage(*count))).collect(),
                ..StoreUsage::default()
            },
            options: StoreOptions { capacity: Some(64 << 20), ..StoreOptions::default() },
        };
        let before = look(at, &[(0, 12), (1, 4)]);
        let now = look(at + Duration::from_secs(2), &[(0, 16)]);
        let shown = text("x", &before, &now, 0);
        let row = |rack: &str| {
            let line = shown.lines().find(|line| line.starts_with(rack)).unwrap().to_owned();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("rack 0"), "rack 0 16 16 MiB 0 0 B 0 B 25 % +2.0 +2 MiB");
        assert_eq!(row("rack 1"), "rack 1 0 0 B 0 0 B 0 B 0 % -2.0 -2 MiB");
        let value = as_json("x", &before, &now);
        assert_eq!(value["racks"][1]["objects_per_second"], -2.0);
        assert_eq!(full(1, None), "-");
    }
}
