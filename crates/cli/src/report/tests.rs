//! A report of a real run, written and looked at.

use super::*;
use crate::ycsb::memory_store::MemoryStores;
use crate::ycsb::{Options, Progress, WorkloadName, run};

/// A run over the store in memory, long enough for a timeline.
fn demo(operations: u64) -> DemoRun {
    let options = Options {
        workloads: WorkloadName::ALL.to_vec(),
        records: 2000,
        operations,
        verify: true,
        ..Options::default()
    };
    let session =
        run(&options.plan().unwrap(), &MemoryStores::default(), Progress::new(true)).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    DemoRun {
        title: "A map in memory & <its> numbers".into(),
        started: utc(std::time::SystemTime::now()),
        machine: machine_facts(),
        pool: vec![pair("Racks", "2"), pair("Fabric", "emulated, 2 µs, 100 Gbit/s")],
        results: session.workloads,
        notes: vec!["A note of this run.".into()],
        commands: vec!["rackpool demo --report out".into()],
    }
}

/// Writes to `RACKPOOL_REPORT_DIR`, if it is set, so that a person can look.
#[test]
fn a_report_holds_everything_and_links_to_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("RACKPOOL_REPORT_DIR").map(PathBuf::from);
    let operations = if kept.is_some() { 2_000_000 } else { 4000 };
    let dir = kept.unwrap_or_else(|| temporary.path().join("made/by/write"));
    let run = demo(operations);
    let paths = write(&dir, &run).unwrap();

    let page = std::fs::read_to_string(&paths.html).unwrap();
    for foreign in ["http:", "https:", "src=", "href=", "<script", "url(", "@import"] {
        assert!(!page.contains(foreign), "{foreign} in the page");
    }
    for (name, title) in [("A", "update heavy"), ("D", "read latest"), ("F", "read-modify-write")] {
        assert!(page.contains(&format!("{name}<small>{title}")), "workload {name}");
    }
    for text in
        ["A map in memory &amp; &lt;its&gt; numbers", "emulated, 2 µs", "A note of this run."]
    {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<svg role=\"img\"").count(), 4);
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("rackpool demo --report"));
    assert!(!page.contains("Not clean"));

    assert_eq!(paths.plots.len(), 8);
    for plot in &paths.plots {
        let bytes = std::fs::read(plot).unwrap();
        let start: &[u8] =
            if plot.extension().unwrap() == "png" { b"\x89PNG\r\n" } else { b"<svg width=\"960\"" };
        assert!(bytes.starts_with(start), "{}", plot.display());
    }
    let read: DemoRun = serde_json::from_slice(&std::fs::read(&paths.json).unwrap()).unwrap();
    assert_eq!(read.results.len(), run.results.len());
}

#[test]
fn every_plot_names_every_workload() {
    let faces = font::Faces::load().unwrap();
    let results = demo(2000).results;
    for figure in Figure::ALL {
        let drawing = render::svg(figure, &results, &faces).unwrap();
        for name in ["A", "B", "C", "D", "F"] {
            assert!(drawing.contains(&format!(">\n{name}\n</text>")), "{name} in {figure:?}");
        }
    }
}

#[test]
fn problems_are_shown_first() {
    let mut run = demo(1000);
    run.results[0].missed = 3;
    let page = html::page(&run, &[]);
    let (problem, results) = (page.find("Not clean").unwrap(), page.find("Results").unwrap());
    assert!(problem < results && page.contains("A: 3 of 1000 operations found no record"));
}

#[test]
fn nothing_run_is_nothing_to_report() {
    let temporary = tempfile::tempdir().unwrap();
    let run = DemoRun { results: Vec::new(), ..demo(100) };
    assert!(matches!(write(temporary.path(), &run), Err(ReportError::NoResults)));
}
