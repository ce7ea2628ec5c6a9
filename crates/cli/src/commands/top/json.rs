//! A sample as JSON: docs/design/seeing.md.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::frame::{PageHeats, RackRates, hottest_pages, rates_of};
use super::look::Look;
use super::rates::quantile;
use crate::commands::json::{degrees, iso};
use rackpool_admin::RackLook;

/// Returns a sample, with rates since the sample before.
pub(super) fn look(before: &Look, now: &Look, pages: u16) -> Value {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let hottest =
        hottest_pages(now, usize::from(pages)).into_iter().map(|PageHeats { page, heats }| {
            let home = heats.iter().find(|(_, heat)| heat.at_home).map(|(rack, _)| rack.0);
            let heats = heats.iter().map(|(rack, heat)| {
            json!({"rack": rack.0, "hotness": degrees(heat.milli), "read_hot": heat.read_hot})
        });
            json!({"page": page.0, "home": home, "racks": heats.collect::<Vec<_>>()})
        });
    json!({
        "time": iso(u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)),
        "seconds": now.at.saturating_duration_since(before.at).as_secs_f64(),
        "page_bytes": now.pool.page_bytes,
        "racks": now.racks.iter().map(|rack| rack_look(before, now, rack)).collect::<Vec<_>>(),
        "hottest": hottest.collect::<Vec<_>>(),
    })
}

fn rack_look(before: &Look, now: &Look, rack: &RackLook) -> Value {
    let metrics = rack.status.as_ref().ok().zip(rates_of(before, now, rack));
    let metrics = metrics.map(|(status, RackRates { rates, times })| {
        let swaps = &status.swaps;
        json!({
            "frames": status.frames,
            "free_frames": status.free_frames,
            "allocated_bytes": status.allocated_bytes,
            "clients": status.clients,
            "local_per_second": rates.local,
            "remote_per_second": rates.remote,
            "requests_per_second": rates.requests,
            "copied_bytes_per_second": rates.copied,
            "remote_p50_us": quantile(&times, 0.5).micros(),
            "remote_p99_us": quantile(&times, 0.99).micros(),
            "pages_arrived": swaps.arrived,
            "pages_departed": swaps.departed,
            "pages_shared": status.sharing.shared,
            "copies": status.sharing.copies,
        })
    });
    json!({
        "rack": rack.member.rack.0,
        "state": rack.state.name(),
        "reason": rack.status.as_ref().err(),
        "metrics": metrics,
    })
}
