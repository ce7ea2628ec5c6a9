use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Suffix};

use crate::Histogram;

/// What a figure counts; the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// Whoever has figures.
pub trait Source: Send + Sync + 'static {
    /// Puts all figures on the page; asked at each scrape.
    ///
    /// # Errors
    /// Passes on those of [`Page`].
    fn show(&self, page: &mut Page<'_>) -> fmt::Result;
}

/// The figures of one scrape. Names are without `rackpool_`, unit and `_total`, which are added.
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    /// A number that only grows.
    ///
    /// # Errors
    /// None in practice: the page is a string.
    pub fn counter(&mut self, name: &str, help: &str, unit: Unit, value: u64) -> fmt::Result {
        self.metric(name, help, unit, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, f64>(&value, None)
    }

    /// Numbers that only grow, told apart by a label.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn counters(
        &mut self,
        (name, label): (&str, &str),
        help: &str,
        unit: Unit,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let mut metric = self.metric(name, help, unit, MetricType::Counter)?;
        for (key, value) in values {
            metric
                .encode_family(&[(label, *key)])?
                .encode_counter::<NoLabelSet, u64, f64>(value, None)?;
        }
        Ok(())
    }

    /// A number that goes up and down.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn gauge(&mut self, name: &str, help: &str, unit: Unit, value: u64) -> fmt::Result {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.metric(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// How long something took, in seconds.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn times(&mut self, name: &str, help: &str, times: &Histogram) -> fmt::Result {
        let (buckets, sum) = times.buckets();
        let count = buckets.iter().map(|(_, count)| count).sum();
        self.metric(name, help, Unit::Seconds, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Unit,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        let suffix = match unit {
            Unit::None => None,
            Unit::Bytes => Some(&Suffix::Bytes),
            Unit::Seconds => Some(&Suffix::Seconds),
        };
        self.encoder.encode_descriptor(name, help, suffix, kind)
    }
}

struct Shown(Arc<dyn Source>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl Collector for Shown {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.show(&mut Page { encoder })
    }
}

/// The figures as text in the OpenMetrics format.
///
/// # Errors
/// Those of the source.
pub fn render(source: &Arc<dyn Source>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("rackpool");
    registry.register_collector(Box::new(Shown(Arc::clone(source))));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Some2;

    impl Source for Some2 {
        fn show(&self, page: &mut Page<'_>) -> fmt::Result {
            page.counter("moved", "Bytes moved.", Unit::Bytes, 7)?;
            page.counters(
                ("swaps", "outcome"),
                "Swaps.",
                Unit::None,
                &[("done", 3), ("a \"quoted\"\n one", 1)],
            )?;
            page.gauge("frames", "Frames.", Unit::None, 32)?;
            let pauses = Histogram::times();
            pauses.record(Duration::from_millis(3));
            page.times("pause", "Pauses.", &pauses)
        }
    }

    #[test]
    fn names_have_prefix_unit_and_total_and_each_figure_says_what_it_is() {
        let source: Arc<dyn Source> = Arc::new(Some2);
        let text = render(&source).unwrap();
        for line in [
            "# HELP rackpool_moved_bytes Bytes moved.",
            "# TYPE rackpool_moved_bytes counter",
            "# UNIT rackpool_moved_bytes bytes",
            "rackpool_moved_bytes_total 7",
            "rackpool_swaps_total{outcome=\"done\"} 3",
            "rackpool_swaps_total{outcome=\"a \\\"quoted\\\"\\n one\"} 1",
            "# TYPE rackpool_frames gauge",
            "rackpool_frames 32",
            "# TYPE rackpool_pause_seconds histogram",
            "rackpool_pause_seconds_count 1",
            "rackpool_pause_seconds_bucket{le=\"0.002\"} 0",
            "rackpool_pause_seconds_bucket{le=\"0.005\"} 1",
            "rackpool_pause_seconds_bucket{le=\"+Inf\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
