//! One picture of `rackpool top`, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rackpool_model::{ByteSize, PageId, RackId};
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;

use super::rates::{Rates, quantile, since};
use super::{Look, RackLook};

/// Columns of a picture that nobody looks at on a terminal.
const PRINTED: usize = 200;

/// The picture, not wider and not higher than a terminal of this size.
pub(super) fn text(before: &Look, now: &Look, pages: u16, size: Option<(usize, usize)>) -> String {
    let (width, height) = size.unwrap_or((PRINTED, usize::MAX));
    let mut lines = racks(before, now);
    lines.push(String::new());
    lines.extend(swaps(now));
    lines.push(String::new());
    lines.extend(hottest(now, usize::from(pages)));
    lines.truncate(height.max(1));
    let cut = |line: String| line.chars().take(width.max(1)).collect::<String>();
    lines.into_iter().map(cut).fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn racks(before: &Look, now: &Look) -> Vec<String> {
    let up = now.racks.iter().filter(|rack| rack.member.alive).count();
    let mut lines = vec![
        format!(
            "rackpool, {} of {} racks up, pages of {}, metadata server {}",
            up,
            now.racks.len(),
            ByteSize(now.pool.page_bytes),
            now.address
        ),
        String::new(),
        format!(
            "{:<5} {:>7} {:>7} {:>9} {:>8} {:>9} {:>9} {:>8} {:>7} {:>7}",
            "rack",
            "frames",
            "free",
            "in use",
            "clients",
            "local/s",
            "remote/s",
            "reqs/s",
            "p50",
            "p99"
        ),
    ];
    for rack in &now.racks {
        let earlier = before.racks.iter().find(|old| old.member.rack == rack.member.rack);
        lines.push(rack_line(earlier, rack, now, before));
    }
    lines
}

fn rack_line(earlier: Option<&RackLook>, rack: &RackLook, now: &Look, before: &Look) -> String {
    let number = rack.member.rack.0;
    let status = match &rack.status {
        Ok(status) => status,
        Err(why) => {
            let (frames, free) = (rack.member.pages.count, rack.member.free_frames);
            return format!("{number:<5} {frames:>7} {free:>7}  {why}");
        }
    };
    let none = RackStatus::default();
    let old = earlier.and_then(|old| old.status.as_ref().ok()).unwrap_or(&none);
    let rates = Rates::between(old, status, now.at.saturating_duration_since(before.at));
    let times = since(&old.remote_times, &status.remote_times);
    format!(
        "{number:<5} {:>7} {:>7} {:>9} {:>8} {:>9} {:>9} {:>8} {:>7} {:>7}",
        status.frames,
        status.free_frames,
        ByteSize(status.allocated_bytes).to_string().replace(' ', ""),
        status.clients,
        short(rates.local),
        short(rates.remote),
        short(rates.requests),
        quantile(&times, 0.5),
        quantile(&times, 0.99),
    )
}

/// A rate in at most five letters: `8.4k`, `1.2M`.
fn short(rate: f64) -> String {
    match rate {
        r if r < 999.5 => format!("{r:.0}"),
        r if r < 9_995.0 => format!("{:.1}k", r / 1e3),
        r if r < 999_500.0 => format!("{:.0}k", r / 1e3),
        r => format!("{:.1}M", r / 1e6),
    }
}

fn swaps(now: &Look) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<5} {:>7} {:>7} {:>7} {:>8} {:>8} {:>9} {:>8} {:>7} {:>7}  {}",
        "swaps",
        "asked",
        "came",
        "went",
        "refused",
        "given up",
        "copied",
        "pause99",
        "shared",
        "copies",
        "mostly because"
    )];
    for rack in &now.racks {
        let Ok(status) = &rack.status else { continue };
        let swaps = &status.swaps;
        let refused: u64 = swaps.refused.iter().map(|(_, count)| count).sum();
        let most = swaps.refused.iter().filter(|(_, count)| *count > 0).max_by_key(|(_, n)| *n);
        lines.push(format!(
            "{:<5} {:>7} {:>7} {:>7} {:>8} {:>8} {:>9} {:>8} {:>7} {:>7}  {}",
            rack.member.rack.0,
            swaps.asked,
            swaps.arrived,
            swaps.departed,
            refused,
            swaps.given_up,
            ByteSize(swaps.copied_bytes).to_string().replace(' ', ""),
            quantile(&swaps.pauses, 0.99),
            status.sharing.shared,
            status.sharing.copies,
            most.map_or("-", |(why, _)| why.as_str()),
        ));
    }
    lines
}

/// Pages by the hotness that they have in all racks together, each with what every rack says.
fn hottest(now: &Look, limit: usize) -> Vec<String> {
    let mut pages: BTreeMap<PageId, Vec<(RackId, &PageHeat)>> = BTreeMap::new();
    for rack in &now.racks {
        for heat in &rack.pages {
            pages.entry(heat.page).or_default().push((rack.member.rack, heat));
        }
    }
    let mut pages: Vec<_> = pages.into_iter().collect();
    pages.sort_by_key(|(page, heats)| {
        let all: u64 = heats.iter().map(|(_, heat)| heat.milli).sum();
        (u64::MAX - all, *page)
    });
    let mut lines =
        vec![format!("{:<8} {:>4}  {}", "hottest", "home", "hotness by rack (r: read-hot)")];
    for (page, heats) in pages.into_iter().take(limit) {
        let home = heats.iter().find(|(_, heat)| heat.at_home);
        let home = home.map_or_else(|| "-".into(), |(rack, _)| rack.0.to_string());
        let mut line = format!("{:<8} {home:>4} ", page.0);
        for (rack, heat) in heats {
            let mark = if heat.read_hot { "r" } else { "" };
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let degrees = heat.milli as f64 / 1000.0;
            let _ = write!(line, " {}: {}{mark}", rack.0, short(degrees));
        }
        lines.push(line);
    }
    if lines.len() == 1 {
        lines.push("nothing has been used lately".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rackpool_model::{Incarnation, MemoryId, PageRange};
    use rackpool_wire::control::ShareStatus;
    use rackpool_wire::metadata::{Member, PoolStatus};

    use super::*;

    fn member(rack: u16, alive: bool) -> Member {
        Member {
            rack: RackId(rack),
            incarnation: Incarnation(1),
            memory: MemoryId(1),
            alive,
            pages: PageRange { first: PageId(1), count: 32 },
            free_frames: 30,
            control_path: String::new(),
            fabric_address: "10.0.0.7:4000".into(),
        }
    }

    fn look(at: Instant, remote_operations: u64) -> Look {
        let members = vec![member(0, true), member(1, false)];
        let sharing = ShareStatus { shared: 21, copies: 34, ..ShareStatus::default() };
        let status =
            RackStatus { pid: 7, frames: 32, remote_operations, sharing, ..RackStatus::default() };
        let heat = |page, milli, at_home| PageHeat {
            page: PageId(page),
            milli,
            reads: 1,
            writes: 0,
            hot: true,
            read_hot: true,
            at_home,
        };
        let pages = vec![heat(3, 9000, true), heat(40, 12_000, false)];
        let racks = vec![
            RackLook { member: members[0].clone(), status: Ok(status), pages },
            RackLook { member: members[1].clone(), status: Err("down".into()), pages: vec![] },
        ];
        let pool = PoolStatus {
            page_bytes: 65536,
            lease_ms: 2000,
            version: 1,
            members,
            roots: Vec::new(),
            lost_pages: 0,
            store_bytes: 0,
        };
        Look { at, address: "127.0.0.1:7400".into(), pool, racks }
    }

    #[test]
    fn a_picture_has_rates_racks_that_are_down_and_the_hottest_page_first() {
        let start = Instant::now();
        let (before, now) = (look(start, 0), look(start + Duration::from_secs(2), 50_000));
        let text = text(&before, &now, 10, None);
        assert!(text.contains("1 of 2 racks up") && text.contains(" 25k "), "{text}");
        assert!(text.contains("\n1          32      30  down\n"), "{text}");
        let (hottest, second) = (text.find("\n40 ").unwrap(), text.find("\n3  ").unwrap());
        assert!(hottest < second, "{text}");
        assert!(text.contains("0: 12r"), "{text}");
        assert!(text.contains("shared  copies") && text.contains("     21      34  -\n"), "{text}");
    }

    #[test]
    fn a_small_terminal_gets_what_fits() {
        let start = Instant::now();
        let (before, now) = (look(start, 0), look(start, 0));
        for (width, height) in [(0, 0), (1, 1), (20, 3), (80, 5)] {
            let text = text(&before, &now, 10, Some((width, height)));
            assert!(text.lines().count() <= height.max(1), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width.max(1)), "{text}");
        }
    }

    #[test]
    fn rates_are_short() {
        let rates = [0.0, 999.0, 999.7, 12_345.0, 9_996.0, 999_600.0, 1.25e6].map(short);
        assert_eq!(rates, ["0", "999", "1.0k", "12k", "10k", "1.0M", "1.2M"]);
    }
}
