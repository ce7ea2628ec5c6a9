//! The pages of figures in `docs`, written from what the benchmarks measured.
//!
//! Each [`Page`] has a head, which people write, and behind [`MARK`] a part for each benchmark with
//! the figures that have a limit. A run replaces the parts of the benchmarks that it ran and leaves
//! the others as they are. The pages are short: a section's title heads its table, and a unit
//! stands once in a row.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::table::{Line, Table};

/// The environment variable with the folder of the pages that a run writes to.
pub const VARIABLE: &str = "RACKPOOL_BENCH_PAGES";
/// What stands before the first part.
pub const MARK: &str = "<!-- `cargo x bench --write` writes what follows. -->";

/// The page that has the part of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// Accesses within a rack, the services, and faults.
    Rack,
    /// Operations between racks: the fabric, requests, swaps and replicas.
    Racks,
    /// Objects between racks, casts and groups.
    Objects,
}

impl Page {
    const ALL: [Self; 3] = [Self::Rack, Self::Racks, Self::Objects];

    const fn file(self) -> &'static str {
        match self {
            Self::Rack => "benchmarking.md",
            Self::Racks => "benchmarking-racks.md",
            Self::Objects => "benchmarking-objects.md",
        }
    }
}

/// Where and when a run was made.
#[derive(Debug)]
pub struct Setting {
    /// The day, as `2026-11-28`.
    pub day: String,
    /// The processor and the number of its cores.
    pub machine: String,
}

impl Setting {
    /// This machine, today.
    ///
    /// # Errors
    /// The day could not be learned.
    pub fn here() -> anyhow::Result<Self> {
        let date = Command::new("date").args(["-u", "+%F"]).output().context("date -u +%F")?;
        anyhow::ensure!(date.status.success(), "`date -u +%F` failed");
        let day = String::from_utf8(date.stdout)?.trim().to_owned();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let model = model.map_or("unknown processor", |(_, model)| model.trim());
        let cores = std::thread::available_parallelism()?;
        Ok(Self { day, machine: format!("{model}, {cores} cores") })
    }
}

/// Writes the parts of the benchmarks that were run into their pages in `folder`. `benchmarks` are
/// all benchmarks in their order, each with its page. Returns the files of the pages that have a
/// new part.
///
/// # Errors
/// A page can't be read or written, or has no [`MARK`].
pub fn write(
    folder: &Path,
    benchmarks: &[(&str, Page)],
    table: &Table,
    setting: &Setting,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for page in Page::ALL {
        let on_page = benchmarks.iter().filter(|(_, own)| *own == page);
        let order: Vec<&str> = on_page.map(|(name, _)| *name).collect();
        if !table.sections().iter().any(|section| order.contains(&section.benchmark)) {
            continue;
        }
        let path = folder.join(page.file());
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let updated = updated(&text, &order, table, setting)
            .with_context(|| format!("{} has no line {MARK}", path.display()))?;
        std::fs::write(&path, updated).with_context(|| path.display().to_string())?;
        written.push(path);
    }
    Ok(written)
}

fn updated(page: &str, order: &[&str], table: &Table, setting: &Setting) -> Option<String> {
    let (head, rest) = page.split_once(MARK)?;
    let mut text = format!("{head}{MARK}\n");
    for name in order {
        let own = part(name, table, setting).or_else(|| former(rest, name).map(str::to_owned));
        if let Some(own) = own {
            let _ = write!(text, "\n{}\n", own.trim_end());
        }
    }
    Some(text)
}

fn title(name: &str) -> String {
    format!("## {name}\n")
}

/// The part that the page has of a benchmark so far.
fn former<'a>(rest: &'a str, name: &str) -> Option<&'a str> {
    let from = rest.find(&title(name))?;
    let part = &rest[from..];
    let end = part[1..].find("\n## ").map_or(part.len(), |at| at + 2);
    Some(&part[..end])
}

fn part(name: &str, table: &Table, setting: &Setting) -> Option<String> {
    let mut text = title(name);
    let _ = writeln!(text, "\n{}, {}", setting.day, setting.machine);
    let mut any = false;
    for section in table.sections().iter().filter(|section| section.benchmark == name) {
        let rows: Vec<String> = section.lines.iter().filter_map(row).collect();
        if rows.is_empty() {
            continue;
        }
        any = true;
        let (title, rows) = (&section.title, rows.join("\n"));
        let _ = writeln!(text, "\n| {title} | measured | limit |\n|---|---|---|\n{rows}");
    }
    any.then_some(text)
}

/// The row of a line; `None` for a figure without a limit: a reader can't tell what it should be.
fn row(line: &Line) -> Option<String> {
    match line {
        Line::Figure { name, measured, limit, detail, met } => {
            // What was compared with is a figure as well; how it was measured, the code says.
            let detail = if detail.contains(|c: char| c.is_ascii_digit()) {
                format!(" ({})", unit_once(detail))
            } else {
                String::new()
            };
            let unit = measured.split_once(' ').map_or("", |(_, unit)| unit);
            let limit = limit.as_deref()?;
            let limit = limit.strip_suffix(unit).unwrap_or(limit).trim_end();
            let missed = if *met { "" } else { ", **missed**" };
            Some(format!("| {name} | {measured}{detail} | {limit}{missed} |"))
        }
        Line::NotMeasured(reason) => Some(format!("| {reason} | **not measured** | - |")),
    }
}

/// Two figures of one unit with the unit behind the second only: `9 ns against 7 ns` becomes `9
/// against 7 ns`.
fn unit_once(detail: &str) -> String {
    let repeated = detail.split_once(" against ").and_then(|(ours, peer)| {
        let unit = peer.split([' ', ',', ';']).nth(1)?;
        Some(format!("{} against {peer}", ours.strip_suffix(unit)?.strip_suffix(' ')?))
    });
    repeated.unwrap_or_else(|| detail.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Benchmarking\n\nHow to read it.\n\n\
        <!-- `cargo x bench --write` writes what follows. -->\n\n\
        ## local\n\nold local\n\n## rings\n\nold rings\n";

    fn setting() -> Setting {
        Setting { day: "2026-11-28".into(), machine: "a processor, 2 cores".into() }
    }

    fn measured() -> Table {
        let mut table = Table::default();
        table.benchmark("local");
        table.section("64 B against a plain copy");
        table.at_most("read", 1.04, 1.15, "x", "275 ns against 263 ns");
        table.at_most("write", 1.3, 1.2, "x", "of its time");
        table.figure("instructions", 37.0, "", "");
        table.not_measured("no redis-server");
        table
    }

    #[test]
    fn a_run_replaces_what_it_measured_and_leaves_the_rest() {
        let order = ["local", "alloc", "rings"];
        let page = updated(PAGE, &order, &measured(), &setting()).unwrap();
        assert!(page.starts_with("# Benchmarking\n\nHow to read it.\n\n<!-- "), "{page}");
        assert!(!page.contains("old local") && page.ends_with("## rings\n\nold rings\n"), "{page}");
        for part in [
            "## local\n\n2026-11-28, a processor, 2 cores\n\n\
             | 64 B against a plain copy | measured | limit |\n|---|---|---|\n",
            "| read | 1.04 x (275 against 263 ns) | <= 1.15 |\n",
            "| write | 1.30 x | <= 1.2, **missed** |\n",
            "| no redis-server | **not measured** | - |\n",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(!page.contains("instructions"), "a figure without a limit: {page}");
        assert_eq!(updated(&page, &order, &measured(), &setting()).unwrap(), page, "again");
    }

    #[test]
    fn a_run_writes_to_the_pages_of_what_it_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = |page: Page| folder.path().join(page.file());
        for page in Page::ALL {
            std::fs::write(path(page), PAGE).unwrap();
        }
        let benchmarks = [("local", Page::Rack), ("remote", Page::Racks), ("rings", Page::Rack)];
        let mut table = measured();
        let written = write(folder.path(), &benchmarks, &table, &setting()).unwrap();
        assert_eq!(written, [path(Page::Rack)]);
        assert_eq!(std::fs::read_to_string(path(Page::Racks)).unwrap(), PAGE);

        table.benchmark("remote");
        table.section("64 B of another rack");
        table.at_most("read", 0.7, 1.5, "us", "");
        let written = write(folder.path(), &benchmarks, &table, &setting()).unwrap();
        let both = [Page::Rack, Page::Racks];
        assert_eq!(written, both.map(path));
        let [rack, racks] = both.map(|page| std::fs::read_to_string(path(page)).unwrap());
        assert!(rack.contains("## local") && !rack.contains("## remote"), "{rack}");
        // The parts that were there by mistake belong to the other page.
        assert!(racks.contains("## remote") && !racks.contains("## rings"), "{racks}");
    }

    #[test]
    fn a_unit_that_both_figures_have_stands_once() {
        assert_eq!(
            unit_once("64 B: 2 us against 1 us, noise 0 us"),
            "64 B: 2 against 1 us, noise 0 us"
        );
        for other in
            ["9 ns against 7 us", "9 against 7", "9 against 7 ns", "9 kills", "1s against 2 s"]
        {
            assert_eq!(unit_once(other), other);
        }
    }

    #[test]
    fn a_page_without_the_mark_is_not_written_over() {
        assert_eq!(updated("# Mine\n", &["local"], &measured(), &setting()), None);
    }
}
