//! POSIX, rule by rule, as Linux implements it.
#![expect(clippy::unwrap_used, reason = "a rule that can't go on does not hold")]

mod acls;
mod contents;
mod extended;
mod folders;
mod links;
mod listing;
mod locks;
mod modes;
mod names;
mod opening;
mod others;
mod renames;
mod space;
mod times;

use super::Rule;

/// A table of rules under their own names.
macro_rules! rules {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), $name as fn(&crate::files::place::Place))),*]
    };
}
use rules;

/// All rules.
pub fn all() -> impl Iterator<Item = Rule> {
    let tables: [&[Rule]; 14] = [
        opening::RULES,
        names::RULES,
        folders::RULES,
        links::RULES,
        renames::RULES,
        modes::RULES,
        others::RULES,
        times::RULES,
        contents::RULES,
        space::RULES,
        listing::RULES,
        extended::RULES,
        acls::RULES,
        locks::RULES,
    ];
    tables.into_iter().flatten().copied()
}
