//! Reports of figures, written and checked.

use super::*;

fn series(name: &str, values: Vec<Option<f64>>) -> Series {
    Series { name: name.into(), values }
}

/// Times that grow with the size; of the last system two sizes were not measured.
fn reads() -> Panel {
    let sizes = ["64", "256", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB"];
    let times = |first: f64| (0..7).map(|i| Some(first * 2.3_f64.powi(i))).collect::<Vec<_>>();
    let mut some = times(5.0);
    (some[2], some[5]) = (None, None);
    Panel {
        name: "reads".into(),
        title: "reads".into(),
        x_name: "bytes".into(),
        y_name: "us, mean".into(),
        shape: Shape::Lines,
        scale: Scale::Log,
        x: sizes.map(str::to_owned).into(),
        series: vec![
            series("rackpool", times(0.4)),
            series("Rcmp", times(0.9)),
            series("FaRM", times(2.4)),
            series("GAM", times(14.0)),
            series("Grappa & <co>", some),
        ],
    }
}

fn throughput() -> Panel {
    let workloads = ["A", "B", "C", "D", "F"];
    let spread = ["uniform", "zipfian"];
    let names = workloads.iter().flat_map(|w| spread.map(|spread| format!("{w} {spread}")));
    let rates =
        |scale: f64| (0..10).map(|i| Some(scale * f64::from(3 + (i * 7) % 5))).collect::<Vec<_>>();
    let mut some = rates(3.0);
    some[4] = None;
    Panel {
        name: "throughput".into(),
        title: "throughput".into(),
        x_name: "workload".into(),
        y_name: "thousand operations per second".into(),
        shape: Shape::Bars,
        scale: Scale::Linear,
        x: names.collect(),
        series: vec![
            series("rackpool", rates(41.3)),
            series("Rcmp", rates(33.3)),
            series("FaRM", rates(20.0)),
            series("GAM", rates(7.0)),
            series("Grappa", some),
        ],
    }
}

fn figure(number: u32, panels: Vec<Panel>) -> Figure {
    let statement = |verdict, cause: Option<&str>| Statement {
        paper: "The latency of rackpool is the lowest & stays <below> that of Rcmp.".into(),
        measured: "It is 2.3 times lower for each size.".into(),
        verdict,
        cause: cause.map(str::to_owned),
    };
    Figure {
        id: number.to_string(),
        title: format!("micro benchmark <{number}>"),
        setting: "Two racks on one machine & an emulated fabric; one thread reads.".into(),
        panels,
        statements: vec![
            statement(Verdict::Agrees, None),
            statement(Verdict::Differs, Some("the emulated <fabric> has no congestion")),
            statement(Verdict::Untestable, Some("two cores")),
        ],
        notes: vec!["A note of this figure.".into()],
    }
}

fn run() -> FiguresRun {
    let writes = Panel { name: "writes".into(), title: "writes".into(), ..reads() };
    FiguresRun {
        title: "Figures & <numbers>".into(),
        started: "2024-05-01 12:00:00 UTC".into(),
        machine: vec![("Cores".into(), "2 <slow>".into())],
        figures: vec![figure(14, vec![reads(), writes]), figure(18, vec![throughput()])],
        commands: vec!["rackpool figures > out".into()],
        notes: vec!["A note of the run.".into()],
    }
}

fn drawing(panel: &Panel) -> String {
    let faces = Faces::load().unwrap();
    render::svg(&PanelPlot::new("figure-1-p".into(), panel, &faces), &faces).unwrap()
}

/// Returns whether the drawing has `text` as a text of its own.
fn shows(drawing: &str, text: &str) -> bool {
    drawing.contains(&format!(">\n{text}\n</text>"))
}

/// Writes to `RACKPOOL_REPORT_DIR`, if it is set, for inspection.
#[test]
fn a_report_holds_everything_and_links_to_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let kept =
        std::env::var_os("RACKPOOL_REPORT_DIR").map(|dir| PathBuf::from(dir).join("figures"));
    let dir = kept.unwrap_or_else(|| temporary.path().join("made/by/write"));
    let run = run();
    let paths = write(&dir, &run).unwrap();

    let names: Vec<_> = paths.panels.iter().map(|file| file.strip_prefix(&dir).unwrap()).collect();
    let panels = ["figure-14-reads", "figure-14-writes", "figure-18-throughput"];
    let expected = panels.map(|name| ["csv", "svg"].map(|ending| format!("{name}.{ending}")));
    assert_eq!(names, expected.concat().iter().map(Path::new).collect::<Vec<_>>());
    for file in &paths.panels {
        let text = std::fs::read_to_string(file).unwrap();
        let start = if file.extension().unwrap() == "svg" { "<svg width=\"" } else { "" };
        assert!(text.starts_with(start) && text.lines().count() > 7, "{}", file.display());
    }

    let page = std::fs::read_to_string(&paths.html).unwrap();
    assert_eq!(paths.html, dir.join("index.html"));
    for foreign in ["http", "src=", "href=", "<script", "url(", "@import"] {
        assert!(!page.contains(foreign), "{foreign} in the page");
    }
    assert_eq!(page.matches("<svg role=\"img\"").count(), 3);
    let parts = [
        "<h1>Figures &amp; &lt;numbers&gt;</h1>",
        "2024-05-01 12:00:00 UTC",
        "<dd>2 &lt;slow&gt;</dd>",
        "Of 6 statements of the paper, 2 agree with the measurement here, 2 do not, and 2 can't be",
        "Figure 14<small>micro benchmark &lt;14&gt;</small></th><td>1</td><td class=\"no\">1</td>\
         <td>1</td>",
        "<h2>Figure 14: micro benchmark &lt;14&gt;</h2>",
        "Two racks on one machine &amp; an emulated fabric; one thread reads.",
        "<svg role=\"img\" aria-label=\"reads: us, mean by bytes, for rackpool, ",
        "<caption>reads: us, mean</caption>",
        "<th scope=\"row\">1 KiB</th><td>2.12</td><td>4.76</td><td>12.7</td><td>74.1</td><td>-</td>",
        "stays &lt;below&gt; that of Rcmp.</td>",
        "A note of this figure.",
        "<h2>Figure 18: micro benchmark &lt;18&gt;</h2>",
        "rackpool figures &gt; out",
        "A note of the run.",
    ];
    let places: Vec<_> =
        parts.map(|part| page.find(part).unwrap_or_else(|| panic!("{part}"))).into();
    assert!(places.is_sorted(), "{places:?}");
    assert!(!page.contains("<below>") && !page.contains("<slow>") && !page.contains("<co>"));

    assert_eq!(paths.json, dir.join("figures.json"));
    let read: FiguresRun = serde_json::from_slice(&std::fs::read(&paths.json).unwrap()).unwrap();
    assert_eq!((read.figures.len(), &read.figures[1].statements), (2, &run.figures[1].statements));
}

#[test]
fn a_statement_that_does_not_agree_shows_its_cause() {
    let page = page::page(&run(), &[Vec::new(), Vec::new()]);
    let cause = "<td class=\"no\">no</td></tr>\n<tr class=\"cause\"><td colspan=\"3\">Cause: \
                 the emulated &lt;fabric&gt; has no congestion</td></tr>";
    assert_eq!(page.matches(cause).count(), 2, "{page}");
    assert_eq!(page.matches("<td class=\"yes\">yes</td></tr>\n</tbody>").count(), 2, "{page}");
    let untestable = "<td class=\"untestable\">not testable</td></tr>\n<tr class=\"cause\">";
    assert_eq!(page.matches(untestable).count(), 2, "{page}");
}

#[test]
fn a_table_has_quotes_where_needed_and_empty_cells_for_what_was_not_measured() {
    let panel = Panel {
        x_name: "size, bytes".into(),
        x: vec!["64".into(), "a \"b\"".into()],
        series: vec![
            series("one", vec![Some(1.0), Some(0.1 + 0.2)]),
            series("two\nlines", vec![None, Some(1.5e-7)]),
        ],
        ..reads()
    };
    let table = csv::table(&panel);
    let lines = [
        "\"size, bytes\",one,\"two\nlines\"",
        "64,1,",
        "\"a \"\"b\"\"\",0.30000000000000004,0.00000015",
    ];
    assert_eq!(table, lines.join("\n") + "\n");
}

#[test]
fn lines_name_their_series_and_break_where_nothing_was_measured() {
    let text = drawing(&reads());
    for name in ["rackpool", "Rcmp", "FaRM", "GAM", "Grappa &amp; &lt;co&gt;", "64 KiB", "bytes"] {
        assert!(shows(&text, name), "{name} in {text}");
    }
    assert!(shows(&text, "us, mean, logarithmic"));
    // The last series has three parts, the last of them a disc alone; and a disc in the legend.
    let count = |element: &str, colour: &str| {
        text.lines().filter(|l| l.starts_with(element) && l.contains(colour)).count()
    };
    assert_eq!([count("<polyline", "#C2583F"), count("<circle", "#C2583F")], [2, 6]);
    assert_eq!([count("<polyline", "#2B5D8A"), count("<circle", "#2B5D8A")], [1, 8]);
}

#[test]
fn bars_stand_in_groups_with_their_values() {
    let text = drawing(&throughput());
    assert!(text.starts_with("<svg width=\"960\""), "ten groups of five need the whole width");
    let count = |colour: &str| {
        text.lines().filter(|l| l.starts_with("<rect") && l.contains(colour)).count()
    };
    assert_eq!([count("#2B5D8A"), count("#C2583F")], [10, 9]);
    for value in ["289", "124", "\u{2013}"] {
        assert!(shows(&text, value), "{value} in {text}");
    }
    let mut few = throughput();
    few.x.truncate(2);
    few.series.truncate(3);
    few.series.iter_mut().for_each(|series| series.values.truncate(2));
    let text = drawing(&few);
    assert!(text.starts_with("<svg width=\"480\""), "{text}");
    for value in ["124", "99.9", "60.0", "207", "167", "100"] {
        assert!(shows(&text, value), "{value} in {text}");
    }
}

#[test]
fn a_panel_without_values_says_so() {
    for (shape, scale) in [(Shape::Lines, Scale::Linear), (Shape::Bars, Scale::Log)] {
        let mut panel = Panel { shape, scale, ..reads() };
        panel.series.iter_mut().for_each(|series| series.values = vec![None; 7]);
        let text = drawing(&panel);
        assert!(shows(&text, "not measured") && shows(&text, "256 KiB") && shows(&text, "1"));
        let empty = Panel { x: Vec::new(), series: Vec::new(), ..panel };
        assert!(shows(&drawing(&empty), "not measured"));
    }
}

#[test]
fn values_that_an_axis_cannot_show_stand_at_its_foot() {
    for shape in [Shape::Lines, Shape::Bars] {
        for scale in [Scale::Linear, Scale::Log] {
            let mut panel = Panel { shape, scale, ..reads() };
            panel.series[0].values[..3].copy_from_slice(&[Some(0.0), Some(-3.0), Some(1e-300)]);
            assert!(drawing(&panel).contains("; lower values stand at the foot"));
            panel.series.iter_mut().for_each(|series| series.values = vec![Some(-1e29); 7]);
            assert!(!shows(&drawing(&panel), "not measured"));
        }
    }
}

/// Returns the message of the error, and checks that nothing was written.
fn refused(run: &FiguresRun) -> String {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("out");
    let error = write(&dir, run).unwrap_err();
    assert!(!dir.exists(), "{error}");
    error.to_string()
}

#[test]
fn no_figures_are_nothing_to_report() {
    let message = refused(&FiguresRun { figures: Vec::new(), ..run() });
    assert!(message.contains("no figures"), "{message}");
}

#[test]
fn unfit_panels_are_named() {
    let with = |change: &dyn Fn(&mut Panel)| {
        let mut run = run();
        change(&mut run.figures[0].panels[1]);
        refused(&run)
    };
    for name in ["", "Reads", "a/b", "../up", "a b", "a_b", "\u{e4}"] {
        let message = with(&|panel| panel.name = name.into());
        assert!(message.contains(&format!("figure 14: the panel's name {name:?}")), "{message}");
    }
    let message = with(&|panel| panel.name = "reads".into());
    assert!(message.contains("figure 14 has two panels with the name \"reads\""), "{message}");
    let message = with(&|panel| panel.series[1].values.truncate(6));
    let told = "figure 14, panel \"writes\": the series \"Rcmp\" has 6 values for 7 places";
    assert!(message.contains(told), "{message}");
    for value in [f64::NAN, f64::INFINITY, -1e30] {
        let message = with(&|panel| panel.series[2].values[0] = Some(value));
        let told = "figure 14, panel \"writes\": the series \"FaRM\" has the value";
        assert!(message.contains(told), "{message}");
    }
}
