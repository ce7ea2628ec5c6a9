//! Sampling the hotness of pages during a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rackpool_admin::top_pages;
use rackpool_model::PageId;
use rackpool_model::RackId;
use rackpool_report::{HeatCell, HeatMap, HeatRow};
use rackpool_shm::directory::RackDirectory;
use rackpool_wire::history::PageHeat;

/// Time between two samples, at first.
const INTERVAL: Duration = Duration::from_millis(20);
/// The most samples kept: at this number the second of each two is dropped and the interval
/// doubles.
const LOOKS: usize = 256;
/// Number of pages requested from each rack, and number of pages shown.
const ASKED: u16 = 64;
const SHOWN: usize = 24;

/// One sample of all racks.
struct Look {
    seconds: f64,
    cells: BTreeMap<PageId, HeatCell>,
}

/// A thread that samples the racks' hottest pages.
pub(super) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Look>>,
}

impl Watch {
    /// Starts sampling the racks of the pool in `dir`.
    pub(super) fn start(dir: &Path, racks: &[RackId]) -> Self {
        let sockets: Vec<(u16, PathBuf)> = racks
            .iter()
            .map(|rack| (rack.0, RackDirectory::new(dir, *rack).control_socket()))
            .collect();
        let (stop, stopped) = mpsc::channel();
        let start = Instant::now();
        // Before the caller's next access.
        let mut looks = vec![look(start, &sockets)];
        let thread = std::thread::spawn(move || {
            let mut interval = INTERVAL;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                looks.push(look(start, &sockets));
                if looks.len() >= LOOKS {
                    thin(&mut looks);
                    interval *= 2;
                }
            }
            looks
        });
        Self { stop, thread }
    }

    /// Stops sampling. Returns the map, or `None` if no page was hot.
    pub(super) fn end(self, setting: String) -> Option<HeatMap> {
        drop(self.stop);
        let looks = self.thread.join().ok()?;
        map(&looks, setting)
    }
}

/// Drops the second of each two samples: the first of all stays, so that the map begins with the
/// run.
fn thin(looks: &mut Vec<Look>) {
    let mut stays = false;
    looks.retain(|_| {
        stays = !stays;
        stays
    });
}

fn look(start: Instant, sockets: &[(u16, PathBuf)]) -> Look {
    let seconds = start.elapsed().as_secs_f64();
    let mut cells = BTreeMap::new();
    for (rack, socket) in sockets {
        // A daemon that does not answer counts as cold: the map is only an illustration.
        let pages = top_pages(&socket.display().to_string(), ASKED).unwrap_or_default();
        pages.iter().for_each(|heat| note(&mut cells, *rack, heat));
    }
    Look { seconds, cells }
}

fn note(cells: &mut BTreeMap<PageId, HeatCell>, rack: u16, heat: &PageHeat) {
    let cell = cells.entry(heat.page).or_insert(HeatCell { milli: 1000, home: None });
    cell.milli = cell.milli.max(heat.milli);
    if heat.at_home {
        cell.home = Some(rack);
    }
}

/// Returns the pages that were hottest over the whole run. A page missing in a sample is cold, and
/// still at its last known home.
fn map(looks: &[Look], setting: String) -> Option<HeatMap> {
    let mut sums: BTreeMap<PageId, u64> = BTreeMap::new();
    for (page, cell) in looks.iter().flat_map(|look| &look.cells) {
        *sums.entry(*page).or_default() += cell.milli - 1000;
    }
    let mut hottest: Vec<(PageId, u64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
    hottest.sort_by_key(|(page, sum)| (u64::MAX - sum, *page));
    hottest.truncate(SHOWN);
    hottest.sort_by_key(|(page, _)| *page);
    let row = |page: PageId| {
        let mut home = None;
        let cells = looks.iter().map(|look| {
            let seen = look.cells.get(&page).copied();
            let cell = seen.unwrap_or(HeatCell { milli: 1000, home: None });
            home = cell.home.or(home);
            HeatCell { home, ..cell }
        });
        HeatRow { page: page.0, cells: cells.collect() }
    };
    let pages: Vec<HeatRow> = hottest.into_iter().map(|(page, _)| row(page)).collect();
    let seconds = looks.iter().map(|look| look.seconds).collect();
    (!pages.is_empty()).then_some(HeatMap { setting, seconds, pages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_its_home_while_it_is_not_seen_and_is_as_hot_as_where_it_is_hottest() {
        let heat = |milli, at_home| PageHeat {
            page: PageId(5),
            milli,
            reads: 0,
            writes: 0,
            hot: true,
            read_hot: false,
            at_home,
        };
        let look = |seconds, seen: &[(u16, PageHeat)]| {
            let mut cells = BTreeMap::new();
            seen.iter().for_each(|(rack, heat)| note(&mut cells, *rack, heat));
            Look { seconds, cells }
        };
        let looks = [
            look(0.1, &[(0, heat(2000, true)), (1, heat(9000, false))]),
            look(0.2, &[]),
            look(0.3, &[(1, heat(8000, true))]),
        ];
        let map = map(&looks, String::new()).unwrap();
        let cells: Vec<_> = map.pages[0].cells.iter().map(|cell| (cell.milli, cell.home)).collect();
        assert_eq!(cells, [(9000, Some(0)), (1000, Some(0)), (8000, Some(1))]);
        assert_eq!(map.seconds, [0.1, 0.2, 0.3]);
    }

    #[test]
    fn the_map_of_a_long_run_begins_with_the_run() {
        let look = |number: u32| Look { seconds: f64::from(number), cells: BTreeMap::new() };
        let mut looks: Vec<Look> = (0..8).map(look).collect();
        thin(&mut looks);
        thin(&mut looks);
        let seconds: Vec<f64> = looks.iter().map(|look| look.seconds).collect();
        assert_eq!(seconds, [0.0, 4.0]);
    }

    #[test]
    fn nothing_hot_is_no_map() {
        assert!(map(&[Look { seconds: 0.0, cells: BTreeMap::new() }], String::new()).is_none());
    }
}
