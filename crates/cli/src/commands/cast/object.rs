//! Copies an object into other racks.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use indicatif::ProgressDrawTarget;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{CastOptions, CastReport, CastSchedule, CastVisibility};
use rackpool_output::numbers::counted;
use rackpool_output::{UsageError, outln};
use serde_json::{Value, json};

use super::progress::Bar;
use crate::commands::objects::{Id, WhichStore};

/// How the object is copied.
#[derive(Debug, Args)]
pub(super) struct ObjectOptions {
    /// Racks that get the object: all that agents serve, or numbers such as 1,2,5.
    #[arg(long, value_name = "RACKS", default_value = "all", conflicts_with = "plan")]
    to: Racks,
    /// When programs may use the copies: in each rack as soon as it has the whole object, or in no
    /// rack before all have it.
    #[arg(long, value_enum, default_value = "each", conflicts_with = "plan")]
    visible: Visible,
    /// Who sends which block to whom: sequential, chain, tree, pipeline, interleaved
    /// (two pipelines that take turns) or hybrid. Over TCP a chain is the fastest.
    #[arg(long, value_parser = super::schedule, default_value = "interleaved", conflicts_with = "plan")]
    schedule: CastSchedule,
    /// Size of a block, a multiple of 64K [default: by number of racks and size of the object].
    #[arg(long, value_name = "SIZE", conflicts_with = "plan")]
    block: Option<ByteSize>,
    /// Seconds without a report after which a rack is taken for lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, conflicts_with = "plan")]
    grace: u64,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long, conflicts_with = "plan")]
    json: bool,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Visible {
    Each,
    Together,
}

/// Racks that get an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Racks {
    All,
    These(BTreeSet<RackId>),
}

impl FromStr for Racks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = |rack: &str| {
            let number = rack.trim().parse().map(RackId);
            number.map_err(|_| format!("'{rack}' is no rack: write all, or numbers such as 1,2,5"))
        };
        text.split(',').map(number).collect::<Result<_, _>>().map(Self::These)
    }
}

/// Runs the command.
pub(super) fn run(id: &Id, options: &ObjectOptions, pods: &[u16]) -> anyhow::Result<()> {
    let ObjectOptions { to, visible, schedule, block, grace, json, which } = options;
    let store = which.open()?;
    let own = store.pool().rack();
    let racks: Vec<_> = match to {
        Racks::All => store.cast_racks()?.into_iter().filter(|rack| *rack != own).collect(),
        Racks::These(racks) => racks.iter().copied().collect(),
    };
    if racks.is_empty() {
        bail!(
            "no agent serves another rack: start `rackpool agent` in the racks that are to get objects"
        );
    }
    let options = CastOptions {
        schedule: *schedule,
        visible: match visible {
            Visible::Each => CastVisibility::Each,
            Visible::Together => CastVisibility::Together,
        },
        block_bytes: block.map(|bytes| bytes.0),
        pods: pods_of(own, &racks, pods, *schedule)?,
        grace: Duration::from_secs(*grace),
    };
    let mut bar = Bar::new(racks.len(), ProgressDrawTarget::stderr());
    let report = store.cast(&id.0.0, &racks, &options, |progress| bar.tell(progress))?;
    drop(bar);
    let report = report.ok_or_else(|| which.missing(&[id]))?;
    if *json {
        outln!("{:#}", to_json(id, &report))?;
    } else {
        show(id, &report)?;
    }
    let failed = report.racks.values().filter(|result| result.is_err()).count() as u64;
    if failed > 0 {
        bail!("{} did not get the object", counted(failed, "rack", "racks"));
    }
    Ok(())
}

/// Cuts the racks, in the order of their numbers, into pods of these sizes.
fn pods_of(
    own: RackId,
    racks: &[RackId],
    pods: &[u16],
    schedule: CastSchedule,
) -> anyhow::Result<Vec<Vec<RackId>>> {
    if (schedule == CastSchedule::Hybrid) == pods.is_empty() {
        bail!(UsageError::new("--pods and --schedule hybrid need each other"));
    }
    let all: BTreeSet<_> = racks.iter().copied().chain([own]).collect();
    let (mut rest, mut cut) = (all.into_iter(), Vec::new());
    for size in pods {
        cut.push(rest.by_ref().take(usize::from(*size)).collect::<Vec<_>>());
    }
    let sum: usize = pods.iter().map(|size| usize::from(*size)).sum();
    let taken: usize = cut.iter().map(Vec::len).sum();
    if !pods.is_empty() && (rest.next().is_some() || taken != sum || pods.contains(&0)) {
        let message =
            format!("--pods has {sum} racks; with this rack {} take part", racks.len() + 1);
        bail!(UsageError::new(message));
    }
    Ok(cut)
}

fn show(id: &Id, report: &CastReport) -> anyhow::Result<()> {
    let CastReport { racks, bytes, blocks, block_bytes, took } = report;
    let done = racks.values().filter(|result| result.is_ok()).count();
    outln!(
        "object '{id}', {} in {} of {}: {done} of {} in {:.1} ms",
        ByteSize(*bytes),
        counted((*blocks).into(), "block", "blocks"),
        ByteSize(*block_bytes),
        counted(racks.len() as u64, "rack", "racks"),
        took.as_secs_f64() * 1e3
    )?;
    for (rack, result) in racks {
        match result {
            Ok(()) => outln!("  {rack:<8}  has it")?,
            Err(failure) => outln!("  {rack:<8}  {failure}")?,
        }
    }
    Ok(())
}

fn to_json(id: &Id, report: &CastReport) -> Value {
    let racks = report.racks.iter().map(|(rack, result)| {
        json!({ "rack": rack.0, "failure": result.as_ref().err().map(ToString::to_string) })
    });
    json!({
        "id": id.to_string(),
        "bytes": report.bytes,
        "blocks": report.blocks,
        "block_bytes": report.block_bytes,
        "seconds": report.took.as_secs_f64(),
        "racks": racks.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_are_all_or_numbers() {
        assert_eq!("all".parse(), Ok(Racks::All));
        assert_eq!("2, 1,2".parse(), Ok(Racks::These([1, 2].map(RackId).into())));
        for text in ["", "1,", "one", "-1", "70000"] {
            assert!(text.parse::<Racks>().unwrap_err().contains("such as 1,2,5"), "{text}");
        }
    }

    #[test]
    fn pods_have_all_racks_and_are_for_the_hybrid_schedule() {
        let cut = |pods: &[u16], schedule| {
            pods_of(RackId(2), &[RackId(0), RackId(1), RackId(7)], pods, schedule)
        };
        let pods = cut(&[1, 3], CastSchedule::Hybrid).unwrap();
        assert_eq!(pods, [vec![RackId(0)], vec![RackId(1), RackId(2), RackId(7)]]);
        assert!(cut(&[], CastSchedule::Chain).unwrap().is_empty());
        for (sizes, schedule) in [
            (&[1, 2][..], CastSchedule::Hybrid),
            (&[4, 1], CastSchedule::Hybrid),
            (&[4, 0], CastSchedule::Hybrid),
            (&[], CastSchedule::Hybrid),
            (&[4], CastSchedule::Chain),
        ] {
            assert!(cut(sizes, schedule).is_err(), "{sizes:?}");
        }
    }
}
