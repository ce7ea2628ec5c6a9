//! The report of a real run, written and checked.

use rackpool_output::clock::utc;

use super::*;
use rackpool_ycsb::MemoryStores;
use rackpool_ycsb::{Progress, WorkloadName, WorkloadResult, YcsbOptions, run};

/// A run on the store in memory, long enough for a timeline.
fn demo(operations: u64) -> DemoRun {
    let options = YcsbOptions {
        workloads: WorkloadName::ALL.to_vec(),
        records: 2000,
        operations,
        verify: true,
        ..YcsbOptions::default()
    };
    let session =
        run(&options.plan().unwrap(), &MemoryStores::default(), Progress::new(true)).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    DemoRun {
        title: "A map in memory & <its> numbers".into(),
        started: utc(std::time::SystemTime::now()),
        machine: machine_facts(),
        pool: vec![pair("Racks", "2"), pair("Fabric", "emulated, 2 µs, 100 Gbit/s")],
        ablation: Some(ablation(&session.workloads)),
        heat: Some(heat()),
        companions: Some(companions(&session.workloads)),
        objects: Some(objects()),
        redis: Some(redis(&session.workloads)),
        results: session.workloads,
        notes: vec!["A note of this run.".into()],
        commands: vec!["rackpool demo --report out".into()],
    }
}

/// The result of a short run.
pub(super) fn result() -> WorkloadResult {
    demo(100).results.remove(0)
}

/// Pairs of runs: the second of each has swaps, and is faster.
fn ablation(results: &[WorkloadResult]) -> Ablation {
    let run = |result: &WorkloadResult, distribution: &str, swap| {
        let distribution = distribution.to_owned();
        let throughput = if swap { 1.5 * result.throughput } else { result.throughput };
        let result = WorkloadResult { distribution, throughput, ..result.clone() };
        let (moved, copied_bytes) = if swap { (26, 26 << 20) } else { (0, 0) };
        let copies = if swap { 3 } else { 0 };
        let pause_p99_us = swap.then_some(500);
        AblationRun { swap, result, moved, copied_bytes, copies, pause_p99_us }
    };
    let pair = |distribution| [false, true].map(|swap| run(&results[0], distribution, swap));
    Ablation {
        setting: "rack 0 stored the records, rack 1 uses them".into(),
        runs: ["uniform", "zipfian 0.99"].into_iter().flat_map(pair).collect(),
    }
}

/// Pages that get hot one after the other, and then move.
fn heat() -> HeatMap {
    let cell = |row: u32, column: u32| {
        let late = column.saturating_sub(row);
        let milli = 1000 + u64::from(late * late * late) * 400;
        HeatCell { milli, home: Some(u16::from(late > 6)) }
    };
    let row = |row| {
        let cells = (0..40).map(|column| cell(row, column)).collect();
        HeatRow { page: 500 + row, cells }
    };
    HeatMap {
        setting: "YCSB B, zipfian".into(),
        seconds: (0..40).map(|column| f64::from(column) / 10.0).collect(),
        pages: (0..24).map(row).collect(),
    }
}

fn companions(results: &[WorkloadResult]) -> Companions {
    let what = "read through another <rack>".to_owned();
    Companions {
        service: vec![results[0].clone()],
        mount: vec![MountStep { what, bytes: 64 << 20, files: 1, seconds: 0.5 }],
        left_out: vec!["nothing but this".into()],
    }
}

/// Objects whose gets cost the same for each size, but for the first one from afar.
fn objects() -> Objects {
    let times = |shift: u32, put_ns, first_get_ns| ObjectTimes {
        bytes: 1 << shift,
        objects: 1 << (24 - shift),
        put_ns,
        get_ns: 900,
        first_get_ns,
        later_get_ns: 1300,
    };
    Objects {
        setting: "rack 0 puts <objects>, rack 1 gets them".into(),
        sizes: vec![times(10, 12_000, 25_000), times(24, 4_100_000, 9_200_000)],
    }
}

fn redis(results: &[WorkloadResult]) -> Redis {
    Redis::Compared { server: "Redis 7.0.15".into(), results: results.to_vec() }
}

#[test]
fn redis_stands_beside_the_library_and_the_service() {
    let mut run = demo(1000);
    // No rate of the results is another's.
    let throughput =
        |result: &WorkloadResult, throughput| WorkloadResult { throughput, ..result.clone() };
    let of_redis = run.results.iter().map(|result| throughput(result, 54_321.0)).collect();
    run.redis = Some(Redis::Compared { server: "Redis <7>".into(), results: of_redis });
    run.companions.as_mut().unwrap().service = vec![throughput(&run.results[0], 43_210.0)];
    let page = html::page(&run, &[]);
    let section =
        &page[page.find("Beside Redis on this machine").unwrap()..page.find("<h2>Plots").unwrap()];
    for column in ["rackpool, library", "rackpool-kv", "Redis &lt;7&gt;"] {
        assert!(section.contains(&format!("colspan=\"3\">{column}</th>")), "{section}");
    }
    // The service ran the first workload only.
    assert_eq!(
        [">54,321<", ">43,210<", "<td>-</td>"].map(|cell| section.matches(cell).count()),
        [6, 1, 15]
    );
    assert!(section.contains("Library calls are compared with a server"), "{section}");
    let Some(Redis::Compared { results, .. }) = &mut run.redis else { panic!("compared") };
    results[0].missed = 3;
    assert!(html::page(&run, &[]).contains("Not clean"));
}

#[test]
fn a_machine_without_redis_is_not_compared() {
    let why = "Redis is not installed (redis-server is not in PATH)".to_owned();
    let page = html::page(&DemoRun { redis: Some(Redis::NotCompared { why }), ..demo(100) }, &[]);
    assert!(
        page.contains("Redis is not installed (redis-server is not in PATH): nothing is compared")
    );
    let section = &page[page.find("Beside Redis").unwrap()..page.find("<h2>Plots").unwrap()];
    assert!(!section.contains("<table>"), "{section}");
}

#[test]
fn more_values_verified_than_operations_are_explained() {
    let mut run = demo(1000);
    let scanned = html::page(&run, &[]);
    assert!(scanned.contains("values verified (a scan reads many), 0 wrong"));
    assert!(scanned.contains("A scan reads some 50 values and counts as one operation"));
    run.results.retain(|result| result.name != "E");
    assert!(html::page(&run, &[]).contains("values verified, 0 wrong"));
}

#[test]
fn a_distribution_in_the_title_is_named_once() {
    let run = demo(1000);
    let page = html::page(&run, &[]);
    assert!(page.contains("D<small>read latest</small>"), "{page}");
    assert!(page.contains("A<small>update heavy, zipfian 0.99</small>"), "{page}");
}

#[test]
fn one_moved_page_and_one_copy_are_singular() {
    let mut run = demo(100);
    let ablation = run.ablation.as_mut().unwrap();
    ablation.runs.iter_mut().for_each(|run| (run.moved, run.copies) = (1, 1));
    let faces = font::Faces::load().unwrap();
    let drawing = render::svg(Plot::Ablation(ablation), &faces).unwrap();
    assert_eq!(drawing.matches("1 page moved, 26 MiB copied; 1 copy made").count(), 2, "{drawing}");
}

#[test]
fn companions_are_shown_with_what_was_left_out() {
    let page = html::page(&demo(1000), &[]);
    let parts = ["rackpool-kv in every rack", "rackpool-fuse in every rack", "nothing but this"];
    let places: Vec<_> = parts.iter().map(|part| page.find(part).unwrap()).collect();
    assert!(places.is_sorted());
    assert!(page.contains("read through another &lt;rack&gt;") && page.contains("134 MB/s"));
    let mut run = demo(1000);
    run.companions.as_mut().unwrap().service[0].missed = 3;
    assert!(html::page(&run, &[]).contains("Not clean"));
    let without = DemoRun { companions: None, ..run };
    assert!(!html::page(&without, &[]).contains("rackpool-kv"));
}

#[test]
fn swaps_are_told_in_words_too() {
    let run = demo(1000);
    let [.., ablation, heat, _] = Plot::of(&run).try_into().map(|all: [Plot<'_>; 7]| all).unwrap();
    let (ablation, heat) = (ablation.caption(), heat.caption());
    assert!(
        ablation.contains("uniform: ") && ablation.contains("with swaps (+50 %)"),
        "{ablation}"
    );
    assert_eq!(heat, "Hotness of 24 pages over 3.9 s; 24 pages changed home.");
    let faces = font::Faces::load().unwrap();
    let drawing = render::svg(Plot::HeatMap(run.heat.as_ref().unwrap()), &faces).unwrap();
    for text in ["home: rack 0", "home: rack 1", "523", "cold", "from 4"] {
        assert!(drawing.contains(&format!(">\n{text}\n</text>")), "{text}");
    }
}

#[test]
fn objects_are_drawn_and_told_by_size() {
    let run = demo(100);
    let caption = Plot::of(&run).last().unwrap().caption();
    let told = [
        "1 KiB: put 12.0 µs, get 900 ns; in another rack the first get 25.0 µs, later ones 1.30 µs",
        "16 MiB: put 4.10 ms, get 900 ns; in another rack the first get 9.20 ms, later ones 1.30 µs",
    ];
    assert_eq!(caption, format!("Median times of objects by size. {}.", told.join(". ")));
    let faces = font::Faces::load().unwrap();
    let drawing = render::svg(Plot::Objects(run.objects.as_ref().unwrap()), &faces).unwrap();
    let texts = [("16 MiB", 1), ("16,384 objects", 1), ("1 object", 1), ("9.20 ms", 1)];
    for (text, count) in [&texts[..], &[("900 ns", 2), ("1.30 µs", 2), ("put", 1)]].concat() {
        assert_eq!(drawing.matches(&format!(">\n{text}\n</text>")).count(), count, "{text}");
    }
    assert!(drawing.contains("rack 0 puts &lt;objects&gt;"), "{drawing}");
    let without = DemoRun { objects: None, ..run };
    assert_eq!(Plot::of(&without).len(), 6);
}

/// Writes to `RACKPOOL_REPORT_DIR`, if it is set, for inspection.
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
    assert_eq!(page.matches("<svg role=\"img\"").count(), 7);
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("rackpool demo --report"));
    assert!(!page.contains("Not clean"));

    assert_eq!(paths.plots.len(), 14);
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
    let run = DemoRun { ablation: None, heat: None, objects: None, ..demo(2000) };
    for plot in Plot::of(&run) {
        let drawing = render::svg(plot, &faces).unwrap();
        for name in ["A", "B", "C", "D", "F"] {
            assert!(drawing.contains(&format!(">\n{name}\n</text>")), "{name} in {plot:?}");
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
