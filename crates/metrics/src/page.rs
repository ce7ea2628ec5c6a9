use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Suffix};

use crate::histogram::BucketCounts;
use crate::{Histogram, process};

/// The unit of a metric, which becomes the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A provider of metrics.
pub trait Source: Send + Sync + 'static {
    /// Writes all metrics to the page. Called at each scrape.
    ///
    /// # Errors
    /// Passes on the errors of [`Page`].
    fn show(&self, page: &mut Page<'_>) -> fmt::Result;

    /// Returns `Ok` while the process does its work, for `/healthz`. Must not block.
    ///
    /// # Errors
    /// The reason, in one line.
    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Plain,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of the `Content-Type` header.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The metrics of one scrape. Callers give names without the prefix `rackpool_`, the unit and
/// `_total`; the page adds them.
pub struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    /// Adds a counter.
    ///
    /// # Errors
    /// None in practice: the page is a string.
    pub fn counter(&mut self, name: &str, help: &str, unit: Unit, value: u64) -> fmt::Result {
        self.metric(name, help, unit, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, f64>(&value, None)
    }

    /// Adds a family of counters, distinguished by a label.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn counters(
        &mut self,
        name: &str,
        label: &str,
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

    /// Adds a gauge.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn gauge(&mut self, name: &str, help: &str, unit: Unit, value: u64) -> fmt::Result {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.metric(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Adds a family of gauges, distinguished by a label.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn gauges(
        &mut self,
        name: &str,
        label: &str,
        help: &str,
        unit: Unit,
        values: &[(String, u64)],
    ) -> fmt::Result {
        let mut metric = self.metric(name, help, unit, MetricType::Gauge)?;
        for (key, value) in values {
            let value = i64::try_from(*value).unwrap_or(i64::MAX);
            metric.encode_family(&[(label, key.as_str())])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Adds facts about the process: a gauge that is always 1, with these labels.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let mut metric = self.metric(name, help, Unit::None, MetricType::Gauge)?;
        metric.encode_family(&labels)?.encode_gauge(&1_i64)
    }

    /// Adds the expiry of this process's certificate, in seconds since 1970.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn certificate_expiry(&mut self, unix_seconds: u64) -> fmt::Result {
        let help = "When this process's certificate expires, in seconds since 1970.";
        self.gauge("certificate_expiry_timestamp", help, Unit::Seconds, unix_seconds)
    }

    /// Adds a counter of seconds.
    pub(crate) fn counter_seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.metric(name, help, Unit::Seconds, MetricType::Counter)?
            .encode_counter::<NoLabelSet, f64, f64>(&value, None)
    }

    /// Adds a gauge of seconds.
    pub(crate) fn gauge_seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.metric(name, help, Unit::Seconds, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Adds a histogram of durations, in seconds.
    ///
    /// # Errors
    /// As [`counter`](Self::counter).
    pub fn times(&mut self, name: &str, help: &str, times: &Histogram) -> fmt::Result {
        let BucketCounts { buckets, sum } = times.buckets();
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

/// A function that writes metrics to a page, as a collector.
struct Shown<F>(F);

impl<F> fmt::Debug for Shown<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl<F> Collector for Shown<F>
where
    F: Fn(&mut Page<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Page { encoder })
    }
}

/// Renders the metrics as text.
///
/// # Errors
/// Those of the source.
pub fn render(source: &Arc<dyn Source>, format: Format) -> Result<String, fmt::Error> {
    let source = Arc::clone(source);
    let mut own = Registry::with_prefix("rackpool");
    own.register_collector(Box::new(Shown(move |page: &mut Page<'_>| {
        source.show(page)?;
        process::show_build(page)
    })));
    let mut system = Registry::with_prefix("process");
    system.register_collector(Box::new(Shown(process::show)));
    let mut text = String::new();
    encode_registry(&mut text, &own)?;
    encode_registry(&mut text, &system)?;
    match format {
        Format::OpenMetrics => encode_eof(&mut text)?,
        Format::Plain => text = plain(&text),
    }
    Ok(text)
}

/// Converts OpenMetrics to Prometheus' text format: `# HELP` and `# TYPE` lines of counters also
/// have `_total` in the name, and there are no `# UNIT` lines.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("# UNIT ") {
            continue;
        }
        let described = |line: &str, word: &str| {
            let (name, rest) = line.strip_prefix(word)?.split_once(' ')?;
            Some((name.to_owned(), rest.to_owned()))
        };
        let help = described(line, "# HELP ");
        let kind = lines.peek().and_then(|next| described(next, "# TYPE "));
        if let (Some((name, help)), Some((_, kind))) = (help, kind) {
            let end = if kind == "counter" { "_total" } else { "" };
            plain += &format!("# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}\n");
            lines.next();
        } else {
            plain += line;
            plain.push('\n');
        }
    }
    plain
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
                "swaps",
                "outcome",
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
    fn names_have_prefix_unit_and_total_and_each_metric_says_what_it_is() {
        let source: Arc<dyn Source> = Arc::new(Some2);
        let text = render(&source, Format::OpenMetrics).unwrap();
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

    #[test]
    fn descriptions_of_the_plain_format_have_the_names_of_their_samples() {
        let source: Arc<dyn Source> = Arc::new(Some2);
        let text = render(&source, Format::Plain).unwrap();
        for line in [
            "# HELP rackpool_moved_bytes_total Bytes moved.",
            "# TYPE rackpool_moved_bytes_total counter",
            "rackpool_moved_bytes_total 7",
            "# TYPE rackpool_frames gauge",
            "# HELP rackpool_pause_seconds Pauses.",
            "# TYPE process_cpu_seconds_total counter",
            "# TYPE process_start_time_seconds gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        assert!(text.contains("\nrackpool_build_info{version=\""), "{text}");
    }
}
