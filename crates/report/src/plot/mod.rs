//! The plots of a report.

mod ablation;
mod distribution;
mod heat_map;
mod objects;
mod panel;
mod percentiles;
mod throughput;
mod timeline;
mod wording;

use plotters_backend::DrawingBackend;

use super::canvas::{Canvas, Error};
use super::demo_run::DemoRun;
use super::objects::Objects;
use super::render::Drawable;
use super::swap_runs::{Ablation, HeatMap};
pub(super) use panel::{PanelPlot, number};
use rackpool_ycsb::WorkloadResult;
use wording::WIDTH;

/// A plot of a demo's report with its data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plot<'a> {
    Throughput(&'a [WorkloadResult]),
    Percentiles(&'a [WorkloadResult]),
    Distribution(&'a [WorkloadResult]),
    Timeline(&'a [WorkloadResult]),
    Ablation(&'a Ablation),
    HeatMap(&'a HeatMap),
    Objects(&'a Objects),
}

impl<'a> Plot<'a> {
    /// Returns all plots of a run, in the order of the page.
    pub(super) fn of(run: &'a DemoRun) -> Vec<Self> {
        let results = run.results.as_slice();
        let mut plots = vec![
            Self::Throughput(results),
            Self::Percentiles(results),
            Self::Distribution(results),
            Self::Timeline(results),
        ];
        plots.extend(run.ablation.as_ref().map(Self::Ablation));
        plots.extend(run.heat.as_ref().map(Self::HeatMap));
        plots.extend(run.objects.as_ref().map(Self::Objects));
        plots
    }

    /// A text alternative for readers who cannot see the plot.
    pub(super) fn caption(self) -> String {
        match self {
            Self::Throughput(results) => throughput::caption(results),
            Self::Percentiles(results) => percentiles::caption(results),
            Self::Distribution(results) => distribution::caption(results),
            Self::Timeline(results) => timeline::caption(results),
            Self::Ablation(ablation) => ablation::caption(ablation),
            Self::HeatMap(map) => heat_map::caption(map),
            Self::Objects(objects) => objects::caption(objects),
        }
    }
}

impl Drawable for Plot<'_> {
    fn name(&self) -> String {
        let name = match self {
            Self::Throughput(_) => "throughput",
            Self::Percentiles(_) => "latency-percentiles",
            Self::Distribution(_) => "latency-distribution",
            Self::Timeline(_) => "throughput-over-time",
            Self::Ablation(_) => "swap-ablation",
            Self::HeatMap(_) => "heat-of-pages",
            Self::Objects(_) => "objects",
        };
        name.to_owned()
    }

    fn size(&self) -> (u32, u32) {
        match self {
            Self::Percentiles(results) => (WIDTH, percentiles::height(results)),
            Self::HeatMap(map) => (WIDTH, heat_map::height(map)),
            Self::Objects(objects) => (WIDTH, objects::height(objects)),
            _ => (WIDTH, 440),
        }
    }

    fn draw<DB: DrawingBackend>(&self, canvas: &mut Canvas<'_, DB>) -> Result<(), Error<DB>> {
        match self {
            Self::Throughput(results) => throughput::draw(results, canvas),
            Self::Percentiles(results) => percentiles::draw(results, canvas),
            Self::Distribution(results) => distribution::draw(results, canvas),
            Self::Timeline(results) => timeline::draw(results, canvas),
            Self::Ablation(ablation) => ablation::draw(ablation, canvas),
            Self::HeatMap(map) => heat_map::draw(map, canvas),
            Self::Objects(objects) => objects::draw(objects, canvas),
        }
    }
}
