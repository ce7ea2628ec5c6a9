//! The tests and steps that could not run on this machine: counted at the end of `cargo x ci`, and
//! a failure of `cargo x ci --strict` unless the reason is a known one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::{abi, plasma, python};

/// The variable through which tests learn where to note that they were skipped:
/// `rackpool_testing::skip::VARIABLE`.
pub(crate) const VARIABLE: &str = "RACKPOOL_SKIPPED";

/// What a reason begins with that no machine of ours can do away with, and where it is tested
/// instead.
const KNOWN: [(&str, &str); 12] = [
    ("RACKPOOL_RDMA_ADDRESS", "tested in the lab, whose machines have RDMA ports"),
    ("RACKPOOL_RDMA_FOLDER", "tested in the lab, whose machines share a folder"),
    ("conformance of dax", "tested in the lab, whose machines have such a device"),
    ("conformance of huge", "tested in the lab, whose machines have huge pages"),
    ("conformance of numa", "tested in the lab, whose machines have two nodes"),
    ("a pool of kind", "tested in the lab, whose machines have nodes and huge pages"),
    ("this kernel knows no NUMA node", "tested in the lab, whose machines have two nodes"),
    (abi::NOT_COMPARED, "compared on Debian 12, which has a libclang that rdma-sys can use"),
    (python::NOT_TESTED, "tested on Debian 12 with access to PyPI"),
    (plasma::NOT_RUN, "run on Debian 12 with access to PyPI"),
    ("cargo-deny is not installed", "checked by whoever changes a dependency: CONTRIBUTING.md"),
    ("advisories were NOT checked", "checked by whoever changes a dependency: CONTRIBUTING.md"),
];

/// Where the tests of a run note that they were skipped.
pub(crate) fn file(root: &Path) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(target).join("skipped.txt")
}

/// Notes that a step of the run below `root` was skipped.
pub(crate) fn note(root: &Path, reason: &str) {
    let file = OpenOptions::new().create(true).append(true).open(file(root));
    // The line that the step has printed stands in any case.
    let _ = file.and_then(|mut file| writeln!(file, "{}", reason.replace('\n', " ")));
}

/// What was skipped in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    reasons: BTreeMap<String, usize>,
}

impl Skipped {
    /// What the run below `root` has noted so far.
    pub(crate) fn read(root: &Path) -> Self {
        // Without a note there is no file.
        Self::parse(&std::fs::read_to_string(file(root)).unwrap_or_default())
    }

    /// Reads the notes of a run, one reason a line.
    pub(crate) fn parse(text: &str) -> Self {
        let mut reasons = BTreeMap::new();
        for reason in text.lines().filter(|line| !line.is_empty()) {
            *reasons.entry(reason.to_owned()).or_default() += 1;
        }
        Self { reasons }
    }

    /// How many tests and steps were skipped for a reason that is not [`KNOWN`].
    pub(crate) fn unexpected(&self) -> usize {
        self.reasons.iter().filter(|(reason, _)| known(reason).is_none()).map(|(_, n)| n).sum()
    }

    /// What was skipped, for people; empty when nothing was.
    pub(crate) fn report(&self) -> String {
        let count: usize = self.reasons.values().sum();
        if count == 0 {
            return String::new();
        }
        let mut text = format!("tests and steps that could not run on this machine: {count}\n");
        for (reason, count) in &self.reasons {
            let instead = known(reason).map_or("NOT TESTED ANYWHERE", |instead| instead);
            let _ = writeln!(text, "  {count:>3}  {reason} ({instead})");
        }
        text
    }
}

fn known(reason: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(begin, _)| reason.starts_with(begin)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_the_unknown_ones_stand_out() {
        let notes = "RACKPOOL_RDMA_ADDRESS does not name it\nno redis\n\nno redis\n";
        let skipped = Skipped::parse(notes);
        assert_eq!(skipped.unexpected(), 2);
        let report = skipped.report();
        assert!(
            report.starts_with("tests and steps that could not run on this machine: 3\n"),
            "{report}"
        );
        assert!(report.contains("    2  no redis (NOT TESTED ANYWHERE)\n"), "{report}");
        assert!(report.contains("does not name it (tested in the lab, whose"), "{report}");
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(
            (Skipped::parse("").report(), Skipped::parse("\n").unexpected()),
            ("".into(), 0)
        );
    }
}
