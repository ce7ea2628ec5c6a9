//! The output of `rackpool objects ls` and `stat` for people.

use rackpool_model::ByteSize;
use rackpool_objects::{ObjectInfo, ObjectStat};
use rackpool_output::clock::utc_millis;
use rackpool_output::numbers::{counted, grouped};
use rackpool_output::outln;

use super::id::Bytes;

/// Prints a line for each object. `now_ms` is the time in milliseconds since 1970.
pub(super) fn list(objects: &[ObjectInfo], now_ms: u64) -> anyhow::Result<()> {
    let ids: Vec<String> = objects.iter().map(|info| Bytes(info.id.clone()).to_string()).collect();
    let width = ids.iter().map(|id| id.chars().count()).max().unwrap_or(0).clamp(2, 40);
    outln!(
        "{:width$}  {:>10}  {:>10}  {:<8}  {:<6}  {:>8}  CHECKSUM",
        "ID",
        "SIZE",
        "METADATA",
        "RACK",
        "IN",
        "AGE"
    )?;
    for (id, info) in ids.iter().zip(objects) {
        outln!(
            "{id:width$}  {:>10}  {:>10}  {:<8}  {:<6}  {:>8}  {:016x}",
            ByteSize(info.bytes).to_string(),
            ByteSize(info.metadata_bytes).to_string(),
            info.rack.to_string(),
            if info.is_spilled { "file" } else { "memory" },
            age(info.created_ms, now_ms),
            info.checksum
        )?;
    }
    Ok(())
}

/// Prints what is known of an object.
pub(super) fn stat(found: &ObjectStat, now_ms: u64) -> anyhow::Result<()> {
    let ObjectStat { info, addr, pieces, last_use_ms, replicas } = found;
    let replicas: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    let place = match info.is_spilled {
        true => "in a file".into(),
        false => format!("in {}", counted((*pieces).into(), "piece", "pieces")),
    };
    outln!("object       '{}' at {addr} in {}", Bytes(info.id.clone()), info.rack)?;
    outln!("bytes        {} ({}) {place}", ByteSize(info.bytes), grouped(info.bytes))?;
    outln!("metadata     {}", ByteSize(info.metadata_bytes))?;
    outln!("layout tag   {:#x}", info.layout_tag)?;
    outln!("checksum     {:016x}", info.checksum)?;
    let times = [("created", info.created_ms), ("last use", *last_use_ms)];
    for (name, time) in times.into_iter().filter(|(_, time)| *time > 0) {
        outln!("{name:<12} {} UTC, {} ago", utc_millis(time), age(time, now_ms))?;
    }
    outln!(
        "replicas     {}",
        if replicas.is_empty() { "none".into() } else { replicas.join(", ") }
    )?;
    Ok(())
}

/// The time since `then_ms` in the largest unit of which there is one.
pub(super) fn age(then_ms: u64, now_ms: u64) -> String {
    in_one_unit(now_ms.saturating_sub(then_ms))
}

/// A time in milliseconds, in the largest unit of which there is one.
pub(super) fn in_one_unit(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit() {
        for (seconds, text) in [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h")] {
            assert_eq!(age(5000, 5000 + seconds * 1000), text);
        }
        assert_eq!(age(0, 3 * 86_400_000), "3 d");
        // The clock of the creator's host may be ahead.
        assert_eq!(age(2000, 1000), "0 s");
    }
}
