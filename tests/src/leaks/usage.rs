//! Memory in use by object size, and entries of the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::census;
use crate::pool::TestPool;

/// What is in use in a pool in which nothing changes.
#[derive(Debug, Default)]
pub struct Usage {
    /// The number of objects of each size in bytes.
    objects: BTreeMap<u64, u64>,
    /// Frames of each rack that are not free, by page state.
    pages: BTreeMap<String, u64>,
    /// Entries of each table.
    tables: BTreeMap<String, u64>,
}

impl Usage {
    /// The usage of a pool whose tables hold `tables`.
    pub(super) fn of(pool: &TestPool, tables: BTreeMap<String, u64>) -> Self {
        let mut objects = BTreeMap::new();
        for bytes in census::objects(pool).into_values() {
            *objects.entry(bytes).or_default() += 1;
        }
        let mut pages = BTreeMap::new();
        for (rack, state) in census::pages(pool) {
            *pages.entry(format!("{state:?} pages of {rack}")).or_default() += 1;
        }
        Self { objects, pages, tables }
    }

    const fn pages(&self) -> &BTreeMap<String, u64> {
        &self.pages
    }

    const fn tables(&self) -> &BTreeMap<String, u64> {
        &self.tables
    }

    /// Bytes of the objects in use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|(bytes, count)| bytes * count).sum()
    }
}

/// Writes several usages side by side.
pub(super) fn compare(f: &mut fmt::Formatter<'_>, all: &[(&str, &Usage)]) -> fmt::Result {
    write!(f, "{:>32}", "")?;
    all.iter().try_for_each(|(name, _)| write!(f, "{name:>14}"))?;
    row(f, "bytes in objects", all, Usage::bytes)?;
    let sizes: BTreeSet<u64> =
        all.iter().flat_map(|(_, usage)| usage.objects.keys().copied()).collect();
    for size in sizes {
        let count = |usage: &Usage| usage.objects.get(&size).copied().unwrap_or(0);
        row(f, &format!("objects of {size} B"), all, count)?;
    }
    for figures in [Usage::pages, Usage::tables] {
        let names: BTreeSet<&String> =
            all.iter().flat_map(|(_, usage)| figures(usage).keys()).collect();
        for name in names {
            row(f, name, all, |usage| figures(usage).get(name).copied().unwrap_or(0))?;
        }
    }
    writeln!(f)
}

fn row(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    all: &[(&str, &Usage)],
    figure: impl Fn(&Usage) -> u64,
) -> fmt::Result {
    write!(f, "\n{name:>32}")?;
    all.iter().try_for_each(|(_, usage)| write!(f, "{:>14}", figure(usage)))
}
