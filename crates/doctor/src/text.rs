//! The report as text.

use std::fmt::Write;

use rackpool_model::ByteSize;
use rackpool_shm::host::{DeviceWays, NumaNode, RdmaPort, list_text};

use super::fabrics::FabricSupport;
use super::facts::Facts;
use super::measure::{Measured, Measurements, MemoryMeasurements};
use super::report::Report;

/// Width of the column of names.
const NAMES: usize = 18;

#[derive(Default)]
struct Page(String);

impl Page {
    fn heading(&mut self, title: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{gap}{title}");
    }

    fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "  {name:<NAMES$} {value}");
    }

    /// Adds rows under one name, or `none` if there are no values.
    fn rows(&mut self, name: &str, values: impl IntoIterator<Item = String>, none: &str) {
        let mut name = name;
        for value in values {
            self.row(name, value);
            name = "";
        }
        if !name.is_empty() {
            self.row(name, none);
        }
    }
}

impl Report {
    /// Returns the report as a page for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        of(self)
    }
}

/// Returns the whole report.
fn of(report: &Report) -> String {
    let mut page = Page::default();
    computer(&mut page, &report.facts);
    memory(&mut page, &report.facts);
    devices(&mut page, &report.facts);
    match &report.measurements {
        Some(measurements) => measured(&mut page, measurements),
        None => {
            page.heading("measured");
            page.row("nothing", "as asked (--quick)");
        }
    }
    if !report.racks.is_empty() {
        page.heading("racks of the pool");
    }
    for rack in &report.racks {
        let name = format!("rack {}", rack.rack);
        match &rack.state {
            Ok(state) => {
                let lines = [&state.memory, &state.placement, &state.fabric];
                page.rows(&name, lines.into_iter().cloned(), "");
            }
            Err(reason) => page.row(&name, reason),
        }
        if !rack.siblings.is_empty() {
            let numbers: Vec<String> = rack.siblings.iter().map(u16::to_string).collect();
            page.row("", format!("one rack with {}", numbers.join(", ")));
        }
    }
    let verdict = &report.verdict;
    fabrics(&mut page, &verdict.fabrics);
    page.heading("verdict");
    for (name, choice) in [
        ("fabric", &verdict.fabric),
        ("memory", &verdict.memory),
        ("placement", &verdict.placement),
        ("frames", &verdict.frames),
    ] {
        page.row(name, format!("{}: {}", choice.what, choice.why));
    }
    for warning in &verdict.warnings {
        page.row("warning", &warning.what);
        page.row("  do", &warning.fix);
    }
    page.0
}

fn fabrics(page: &mut Page, fabrics: &[FabricSupport]) {
    page.heading("fabrics");
    for fabric in fabrics {
        match &fabric.serves {
            Some(what) => page.row(fabric.name, what),
            None => page.row(fabric.name, "can't be used here"),
        }
        for lack in &fabric.lacks {
            page.row("  lacks", &lack.what);
            page.row("  do", &lack.fix);
        }
    }
}

fn computer(page: &mut Page, facts: &Facts) {
    page.heading("computer");
    page.row("kernel", &facts.kernel);
    page.row("processor", &facts.processor);
    let usable = list_text(&facts.usable_cpus);
    let all = list_text(&facts.cpus);
    let limited = if usable == all { String::new() } else { format!(", usable here {usable}") };
    page.row("CPUs", format!("{all}{limited}"));
    match &facts.cache {
        Some(cache) => {
            let ways = cache.ways.map_or(String::new(), |ways| format!(", {ways} ways"));
            let shared = &cache.shared_by;
            let (level, bytes) = (cache.level, ByteSize(cache.bytes));
            page.row("last-level cache", format!("L{level} {bytes}{ways}, of CPUs {shared}"));
        }
        None => page.row("last-level cache", "unknown: the kernel does not report it"),
    }
    match &facts.device_ways {
        Ok(DeviceWays { shared, all }) => {
            page.row("I/O share of it", format!("{shared} of {all} ways, which programs use too"));
        }
        Err(reason) => page.row("I/O share of it", format!("unknown: {reason}")),
    }
    let barrier = if facts.membarrier { "reaches other processes" } else { "not offered" };
    page.row("membarrier", barrier);
    page.row("/dev/fuse", if facts.fuse { "usable" } else { "not usable by this user" });
    page.row(
        "memlock limit",
        match &facts.memlock_bytes {
            Ok(None) => "none".into(),
            Ok(Some(bytes)) => ByteSize(*bytes).to_string(),
            Err(reason) => format!("unknown: {reason}"),
        },
    );
}

fn memory(page: &mut Page, facts: &Facts) {
    page.heading("memory");
    page.rows("NUMA nodes", facts.nodes.iter().map(node), "the kernel knows none");
    let pools = facts.huge_pools.iter().map(|pool| {
        let (bytes, total, free) = (ByteSize(pool.page_bytes), pool.total, pool.available());
        format!("{bytes}: {total} reserved, {free} can be had")
    });
    page.rows("huge pages", pools, "the kernel has none");
    let mounts = facts.huge_mounts.iter().map(|mount| {
        let size = mount.option("pagesize").unwrap_or("unknown");
        format!("{} with pages of {size}", mount.folder.display())
    });
    page.rows("hugetlbfs", mounts, "not mounted");
    match &facts.shm {
        Some(mount) => page.row(
            "/dev/shm",
            format!("tmpfs, huge pages: {}", mount.option("huge").unwrap_or("never")),
        ),
        None => page.row("/dev/shm", "no tmpfs"),
    }
    if let Some(room) = &facts.room {
        page.row("room for racks", room);
    }
    if let Some(limit) = &facts.memory_limit {
        page.row("memory cgroup", limit);
    }
    let setting = |setting: &Option<String>| setting.clone().unwrap_or_else(|| "not there".into());
    let (shared, anonymous) = (&facts.transparent.shared, &facts.transparent.anonymous);
    page.row(
        "transparent huge",
        format!("memfd {}, private memory {}", setting(shared), setting(anonymous)),
    );
}

fn node(node: &NumaNode) -> String {
    let what = if node.is_memory_only() { ", memory only: CXL or like it" } else { "" };
    let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
    format!(
        "{}: CPUs {}, {}, {} free, distances {}{what}",
        node.id,
        list_text(&node.cpus),
        ByteSize(node.memory_bytes),
        ByteSize(node.free_bytes),
        distances.join(" ")
    )
}

fn devices(page: &mut Page, facts: &Facts) {
    page.heading("devices");
    page.rows("RDMA", facts.rdma.iter().map(port), "no card");
    let cxl = facts.cxl.iter().map(|memory| {
        let node = memory.node.map_or("unknown".into(), |node| node.to_string());
        let (ram, pmem) = (ByteSize(memory.ram_bytes), ByteSize(memory.pmem_bytes));
        let mapped = match memory.is_mapped {
            Some(true) => ", mapped",
            Some(false) => ", not mapped",
            None => "",
        };
        format!("{}: {ram} volatile, {pmem} persistent, node {node}{mapped}", memory.name)
    });
    page.rows("CXL memory", cxl, "none");
    let dax = facts.dax.iter().map(|device| {
        let node = device.node.map_or("unknown".into(), |node| node.to_string());
        let driver = device.driver.as_deref().unwrap_or("no driver");
        let (bytes, align) = (ByteSize(device.bytes), ByteSize(device.align));
        format!("{}: {bytes}, alignment {align}, node {node}, {driver}", device.path())
    });
    page.rows("dax", dax, "none");
}

fn port(port: &RdmaPort) -> String {
    let gids: Vec<String> =
        port.gids_v2.iter().map(|(index, gid)| format!("{index} {gid}")).collect();
    format!(
        "{} port {}: {}, {}, {}, NUMA node {}, RoCE v2 addresses: {}",
        port.device,
        port.port,
        port.state,
        port.link,
        port.rate,
        port.node.map_or("unknown".into(), |node| node.to_string()),
        if gids.is_empty() { "none".into() } else { gids.join(", ") }
    )
}

fn measured(page: &mut Page, measurements: &Measurements) {
    page.heading(&format!(
        "measured in {:.1} s (one core, the best of several runs)",
        measurements.took.as_secs_f64()
    ));
    for memory in &measurements.memory {
        page.row(&way(memory), costs(memory));
    }
    for pair in &measurements.ping_pong {
        let name = format!("CPU {} -> CPU {}", pair.cpus[0], pair.cpus[1]);
        page.row(&name, format!("a cache line in {}", nanoseconds(&pair.one_way_ns)));
    }
    page.row(
        "futex wake",
        format!("{} across cores (median)", nanoseconds(&measurements.futex_wake_ns)),
    );
    page.row("system call", nanoseconds(&Ok(measurements.syscall_ns)));
}

fn way(memory: &MemoryMeasurements) -> String {
    match (memory.from, memory.node) {
        (Some(from), Some(to)) => format!("node {from} -> node {to}"),
        _ => "memory".into(),
    }
}

fn costs(memory: &MemoryMeasurements) -> String {
    let page = ByteSize(memory.page_bytes);
    match &memory.costs {
        Ok(costs) => format!(
            "pages of {page}: random load {:.0} ns, read {:.1} GB/s, write {:.1} GB/s, copy {:.1} GB/s (over {})",
            costs.latency_ns,
            costs.read_gbs,
            costs.write_gbs,
            costs.copy_gbs,
            ByteSize(memory.bytes)
        ),
        Err(reason) => format!("pages of {page}: {reason}"),
    }
}

fn nanoseconds(measured: &Measured<f64>) -> String {
    match measured {
        Ok(ns) if *ns >= 1000.0 => format!("{:.1} us", ns / 1000.0),
        Ok(ns) => format!("{ns:.0} ns"),
        Err(reason) => format!("not measured: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use rackpool_shm::host::HostFiles;

    use super::super::credentials_check::CredentialsCheck;
    use super::super::report::{RackReport, Report};
    use super::super::verdict::Verdict;
    use super::*;

    #[test]
    fn an_empty_computer_is_shown_without_a_guess() {
        let facts = Facts::gather(&HostFiles::at("/nonexistent"));
        let verdict = Verdict::of(&facts, &CredentialsCheck::None, None);
        let silent = RackReport { rack: 3, siblings: vec![4], state: Err("no daemon".into()) };
        let text = of(&Report { facts, measurements: None, racks: vec![silent], verdict });
        for line in [
            "  RDMA               no card\n",
            "  NUMA nodes         the kernel knows none\n",
            "  nothing            as asked (--quick)\n",
            "  rack 3             no daemon\n",
            "                     one rack with 4\n",
            "  verbs              can't be used here\n",
            "    lacks            there is no RDMA card here\n",
        ] {
            assert!(text.contains(line), "'{line}' is not in:\n{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn times_have_units_and_gaps_have_reasons() {
        assert_eq!(nanoseconds(&Ok(42.4)), "42 ns");
        assert_eq!(nanoseconds(&Ok(41_500.0)), "41.5 us");
        assert_eq!(nanoseconds(&Err("busy".into())), "not measured: busy");
    }
}
