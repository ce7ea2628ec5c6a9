//! `rackpool numa study`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use rackpool_numa::Outcome;
use rackpool_numa::figures::{Figure, Plot};
use rackpool_output::clock::utc;
use rackpool_output::{Style, UsageError, outln, print};
use rackpool_report::figures::{Figure as Drawn, FiguresRun, Panel, Scale, Series, Shape, write};
use rackpool_report::machine_facts;
use rackpool_shm::host::HostFiles;

use super::output;
use super::study_options::StudyOptions;

/// The most combinations of values.
const MAX_EXPERIMENTS: usize = 1000;

pub(super) fn run(options: &StudyOptions, style: Style) -> anyhow::Result<()> {
    let experiments = options.experiments();
    let count = experiments.len();
    ensure!(
        count <= MAX_EXPERIMENTS,
        UsageError::new(format!("{count} combinations of values: give at most {MAX_EXPERIMENTS}"))
    );
    let study = options.study(&HostFiles::here())?;
    let outcomes = experiments
        .iter()
        .map(|experiment| study.run(experiment).with_context(|| output::describe(experiment)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let negligible = options.negligible / 100.0;
    let text = if options.csv {
        output::csv(study.host, &outcomes, negligible)
    } else {
        output::table(study.host, &outcomes, negligible, style)
    };
    print(format_args!("{text}"))?;
    if let (Some(folder), Some(published)) = (&options.report, options.figure) {
        let page = report(published.figure(), &outcomes, options.model, folder)?;
        outln!("{}", page.display())?;
    }
    Ok(())
}

/// Writes the page and returns its path.
fn report(
    figure: Figure,
    outcomes: &[Outcome],
    is_model: bool,
    folder: &Path,
) -> anyhow::Result<PathBuf> {
    let source = if is_model { "model of two NUMA nodes" } else { "this machine" };
    let number = figure.number();
    let run = FiguresRun {
        title: format!("NUMA study, {source}"),
        started: utc(SystemTime::now()),
        machine: machine_facts(),
        figures: vec![Drawn {
            id: number.to_string(),
            title: figure.title().into(),
            setting: format!("Figure {number} of Nelson and Palmieri, SRDS 2020, on {source}."),
            panels: figure.plots(outcomes).into_iter().map(panel).collect(),
            statements: Vec::new(),
            notes: Vec::new(),
        }],
        commands: vec![format!("rackpool numa study --figure {number} --report DIR")],
        notes: Vec::new(),
    };
    Ok(write(folder, &run)?.html)
}

fn panel(plot: Plot) -> Panel {
    let series = |(name, values): (String, Vec<f64>)| Series {
        name,
        values: values.into_iter().map(|value| value.is_finite().then_some(value)).collect(),
    };
    Panel {
        name: plot.name.into(),
        title: plot.title.into(),
        x_name: plot.x_name.into(),
        y_name: plot.y_name.into(),
        shape: Shape::Lines,
        scale: Scale::Linear,
        x: plot.x,
        series: plot.lines.into_iter().map(series).collect(),
    }
}
