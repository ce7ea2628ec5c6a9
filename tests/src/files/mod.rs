//! What a file system must do, tried on any folder: on a mount of rackpool, and on the host's own
//! file systems, which show that the rules are right.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | the folder of one rule, and what rules ask of files |
//! | [`rules`] | POSIX, rule by rule |
//! | [`one_file`] | random operations on one file, against its bytes in memory |
//! | [`tree`] | random operations on a tree, against the same ones on another file system |
//! | [`user`] | doing things as somebody else |

pub mod one_file;
pub mod place;
pub mod rules;
pub mod tree;
pub mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use place::Place;

/// A rule: its name and how it is tried in an empty folder. It panics where it does not hold.
pub type Rule = (&'static str, fn(&Place));

/// Tries the rules whose names contain `filter`, each in a folder of its own below `root`; the
/// names of those that do not hold, with what they said.
pub fn broken_rules(root: &Path, filter: &str) -> Vec<(&'static str, String)> {
    let chosen = rules::all().filter(|(name, _)| name.contains(filter));
    let mut broken = Vec::new();
    for (name, check) in chosen {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&Place::new(root, name))));
        if let Err(panic) = outcome {
            broken.push((name, message(&*panic)));
        }
    }
    broken
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}
