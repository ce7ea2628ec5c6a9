//! One screen of `rackpool top`, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rackpool_model::{ByteSize, PageId, RackId};
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;

use super::columns::{Column, Line, Row, Sort, table};
use super::look::Look;
use super::rates::{Rates, quantile, since};
use rackpool_admin::{RackHealth, RackLook};
use rackpool_output::Style;

/// Columns of an output that does not go to a terminal.
const PRINTED: usize = 200;

/// How the screen is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Columns and lines of the terminal; `None` without a terminal.
    pub(super) size: Option<(usize, usize)>,
    /// The most pages in the list of hottest pages.
    pub(super) pages: u16,
    /// The order of the racks.
    pub(super) sort: Sort,
    /// Whether the terminal accepts keys.
    pub(super) takes_keys: bool,
    pub(super) style: Style,
}

/// The columns of the table of racks, with their ranks.
pub(super) const RACKS: [Column; 10] = [
    Column::new("rack", 0),
    Column::new("frames", 6),
    Column::new("free", 2),
    Column::new("in use", 1),
    Column::new("clients", 5),
    Column::new("local/s", 2),
    Column::new("remote/s", 2),
    Column::new("reqs/s", 4),
    Column::new("p50", 5),
    Column::new("p99", 3),
];

const SWAPS: [Column; 11] = [
    Column::new("swaps", 0),
    Column::new("asked", 4),
    Column::new("came", 1),
    Column::new("went", 1),
    Column::new("refused", 2),
    Column::new("given up", 5),
    Column::new("copied", 3),
    Column::new("pause99", 2),
    Column::new("shared", 4),
    Column::new("copies", 4),
    Column::words("mostly because", 3),
];

/// Returns the screen, cut to the terminal's width and height.
pub(super) fn text(before: &Look, now: &Look, view: &View) -> String {
    let (width, height) = view.size.unwrap_or((PRINTED, usize::MAX));
    let (width, height) = (width.max(1), height.max(1));
    let mut lines = vec![Line::plain(title(now)), Line::default()];
    lines.extend(table(&RACKS, &rack_rows(before, now, view.sort), Some(view.sort), width));
    lines.push(Line::default());
    lines.extend(table(&SWAPS, &swap_rows(now), None, width));
    lines.push(Line::default());
    lines.extend(hottest(now, usize::from(view.pages)));
    if view.takes_keys {
        // The help is always the last line of the screen.
        lines.truncate(height - 1);
        lines.push(Line::plain(
            "q quits; left and right choose a column, up and down the order".into(),
        ));
    }
    lines.truncate(height);
    lines.into_iter().map(|line| line.within(width, view.style) + "\n").collect()
}

fn title(now: &Look) -> String {
    let count = |state| now.racks.iter().filter(|rack| rack.state == state).count();
    let left = count(RackHealth::Left);
    let up = count(RackHealth::Up) + count(RackHealth::Silent);
    let mut text = format!("rackpool, {up} of {} racks up", now.racks.len() - left);
    if left > 0 {
        let _ = write!(text, ", {left} left");
    }
    let _ = write!(
        text,
        ", pages of {}, metadata server {}",
        ByteSize(now.pool.page_bytes),
        now.address
    );
    text
}

/// Returns a rack's rates and operation times between two samples.
pub(super) fn rates_of(before: &Look, now: &Look, rack: &RackLook) -> Option<RackRates> {
    let status = rack.status.as_ref().ok()?;
    let earlier = before.racks.iter().find(|old| old.member.rack == rack.member.rack);
    let none = RackStatus::default();
    let old = earlier.and_then(|old| old.status.as_ref().ok()).unwrap_or(&none);
    let rates = Rates::between(old, status, now.at.saturating_duration_since(before.at));
    Some(RackRates { rates, times: since(&old.remote_times, &status.remote_times) })
}

/// What a rack did between two samples.
pub(super) struct RackRates {
    pub(super) rates: Rates,
    /// Durations of operations: counts by upper bounds.
    pub(super) times: Vec<(Option<u64>, u64)>,
}

fn rack_rows(before: &Look, now: &Look, sort: Sort) -> Vec<Row> {
    let mut rows: Vec<Row> = now.racks.iter().map(|rack| rack_row(before, now, rack)).collect();
    sort.apply(&mut rows);
    rows
}

#[expect(clippy::cast_precision_loss, reason = "a number to sort by")]
fn rack_row(before: &Look, now: &Look, rack: &RackLook) -> Row {
    let (number, member) = (rack.member.rack.0, &rack.member);
    let metrics = rates_of(before, now, rack);
    let (Ok(status), Some(RackRates { rates, times })) = (&rack.status, metrics) else {
        let (frames, free) = (member.pages.count, member.free_frames);
        let why = rack.status.as_ref().err().map_or("", String::as_str);
        let why = match rack.state {
            RackHealth::Up => why.to_owned(),
            state => format!("{}: {why}", state.name()),
        };
        let cells = [number.to_string(), frames.to_string(), free.to_string()];
        let keys = [f64::from(number), f64::from(frames), f64::from(free)];
        let is_bad = [RackHealth::Down, RackHealth::Silent].contains(&rack.state);
        return Row { cells: cells.into(), keys: keys.into(), rest: Some(why), is_bad };
    };
    let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    let fields = [
        (number.to_string(), f64::from(number)),
        (status.frames.to_string(), f64::from(status.frames)),
        (status.free_frames.to_string(), f64::from(status.free_frames)),
        (
            ByteSize(status.allocated_bytes).to_string().replace(' ', ""),
            status.allocated_bytes as f64,
        ),
        (status.clients.to_string(), f64::from(status.clients)),
        (short(rates.local), rates.local),
        (short(rates.remote), rates.remote),
        (short(rates.requests), rates.requests),
        (p50.to_string(), p50.key()),
        (p99.to_string(), p99.key()),
    ];
    let (cells, keys) = fields.into_iter().unzip();
    Row { cells, keys, rest: None, is_bad: false }
}

/// Formats a rate in at most five characters: `8.4k`, `1.2M`.
fn short(rate: f64) -> String {
    match rate {
        r if r < 999.5 => format!("{r:.0}"),
        r if r < 9_995.0 => format!("{:.1}k", r / 1e3),
        r if r < 999_500.0 => format!("{:.0}k", r / 1e3),
        r => format!("{:.1}M", r / 1e6),
    }
}

fn swap_rows(now: &Look) -> Vec<Row> {
    let row = |rack: &RackLook| {
        let status = rack.status.as_ref().ok()?;
        let swaps = &status.swaps;
        let refused: u64 = swaps.refused.iter().map(|(_, count)| count).sum();
        let most = swaps.refused.iter().filter(|(_, count)| *count > 0).max_by_key(|(_, n)| *n);
        let cells = vec![
            rack.member.rack.0.to_string(),
            swaps.asked.to_string(),
            swaps.arrived.to_string(),
            swaps.departed.to_string(),
            refused.to_string(),
            swaps.given_up.to_string(),
            ByteSize(swaps.copied_bytes).to_string().replace(' ', ""),
            quantile(&swaps.pauses, 0.99).to_string(),
            status.sharing.shared.to_string(),
            status.sharing.copies.to_string(),
            most.map_or("-", |(why, _)| why.as_str()).to_owned(),
        ];
        Some(Row { cells, keys: Vec::new(), rest: None, is_bad: false })
    };
    now.racks.iter().filter_map(row).collect()
}

/// The hotness of a page.
pub(super) struct PageHeats<'a> {
    pub(super) page: PageId,
    /// Its hotness in each rack.
    pub(super) heats: Vec<(RackId, &'a PageHeat)>,
}

/// Returns the pages with the highest sums of hotness over all racks.
pub(super) fn hottest_pages(now: &Look, limit: usize) -> Vec<PageHeats<'_>> {
    let mut pages: BTreeMap<PageId, Vec<(RackId, &PageHeat)>> = BTreeMap::new();
    for rack in &now.racks {
        for heat in &rack.pages {
            pages.entry(heat.page).or_default().push((rack.member.rack, heat));
        }
    }
    let mut pages: Vec<_> =
        pages.into_iter().map(|(page, heats)| PageHeats { page, heats }).collect();
    pages.sort_by_key(|PageHeats { page, heats }| {
        let all: u64 = heats.iter().map(|(_, heat)| heat.milli).sum();
        (u64::MAX - all, *page)
    });
    pages.truncate(limit);
    pages
}

fn hottest(now: &Look, limit: usize) -> Vec<Line> {
    let heading = format!("{:<8} {:>4}  {}", "hottest", "home", "hotness by rack (r: read-hot)");
    let mut lines = vec![Line::heading(heading)];
    for PageHeats { page, heats } in hottest_pages(now, limit) {
        let home = heats.iter().find(|(_, heat)| heat.at_home);
        let home = home.map_or_else(|| "-".into(), |(rack, _)| rack.0.to_string());
        let mut line = format!("{:<8} {home:>4} ", page.0);
        for (rack, heat) in heats {
            let mark = if heat.read_hot { "r" } else { "" };
            #[expect(clippy::cast_precision_loss, reason = "a number for people")]
            let degrees = heat.milli as f64 / 1000.0;
            let _ = write!(line, " {}: {}{mark}", rack.0, short(degrees));
        }
        lines.push(Line::plain(line));
    }
    if lines.len() == 1 {
        lines.push(Line::plain("nothing has been used lately".into()));
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

    fn view(size: Option<(usize, usize)>) -> View {
        View { size, pages: 10, sort: Sort::default(), takes_keys: false, style: Style::Plain }
    }

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
            RackLook {
                member: members[0].clone(),
                state: RackHealth::Up,
                status: Ok(status),
                pages,
            },
            RackLook {
                member: members[1].clone(),
                state: RackHealth::Down,
                status: Err("its lease has expired".into()),
                pages: vec![],
            },
        ];
        let pool = PoolStatus {
            page_bytes: 65536,
            lease_ms: 2000,
            version: 1,
            members,
            left: Vec::new(),
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
        let text = text(&before, &now, &view(None));
        assert!(text.contains("1 of 2 racks up") && text.contains(" 25k "), "{text}");
        assert!(text.contains("\n1           32     30  down: its lease has expired\n"), "{text}");
        let (hottest, second) = (text.find("\n40 ").unwrap(), text.find("\n3  ").unwrap());
        assert!(hottest < second, "{text}");
        assert!(text.contains("0: 12r"), "{text}");
        assert!(
            text.contains("shared   copies") && text.contains("      21       34  -\n"),
            "{text}"
        );
    }

    #[test]
    fn a_small_terminal_gets_what_fits() {
        let start = Instant::now();
        let (before, now) = (look(start, 0), look(start, 0));
        for (width, height) in [(0, 0), (1, 1), (20, 3), (80, 5)] {
            let text = text(&before, &now, &view(Some((width, height))));
            assert!(text.lines().count() <= height.max(1), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width.max(1)), "{text}");
        }
    }

    #[test]
    fn rates_are_short() {
        let rates = [0.0, 999.0, 999.7, 12_345.0, 9_996.0, 999_600.0, 1.25e6].map(short);
        assert_eq!(rates, ["0", "999", "1.0k", "12k", "10k", "1.0M", "1.2M"]);
    }

    #[test]
    fn racks_stand_in_the_order_that_was_chosen() {
        let start = Instant::now();
        let (before, now) = (look(start, 0), look(start, 0));
        let free = RACKS.iter().position(|column| column.name == "free").unwrap();
        for (is_descending, first) in [(true, "\n1 "), (false, "\n0 ")] {
            let sort = Sort { column: free, is_descending };
            let text = text(&before, &now, &View { sort, ..view(None) });
            let racks = text.split("\nswaps").next().unwrap();
            let places = ["\n0 ", "\n1 "].map(|rack| racks.find(rack).unwrap());
            assert_eq!(racks.find(first), places.iter().min().copied(), "{text}");
            let mark = if is_descending { "free\u{2193}" } else { "free\u{2191}" };
            assert!(text.contains(mark), "{text}");
        }
    }

    #[test]
    fn a_narrow_terminal_gets_whole_columns_and_a_terminal_gets_colours() {
        let start = Instant::now();
        let (before, now) = (look(start, 0), look(start, 0));
        let text40 = text(&before, &now, &view(Some((40, 30))));
        assert!(text40.contains("in use") && !text40.contains("frames"), "{text40}");
        let text120 = text(&before, &now, &view(Some((120, 30))));
        assert!(text120.contains("frames") && text120.contains("mostly because"), "{text120}");
        let coloured = View { style: Style::Coloured, ..view(Some((120, 30))) };
        let coloured = text(&before, &now, &coloured);
        assert!(
            coloured.contains("\u{1b}[1mrack") && coloured.contains("\u{1b}[31m1 "),
            "{coloured}"
        );
        assert!(!text120.contains('\u{1b}'), "{text120}");
    }
}
