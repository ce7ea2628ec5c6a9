//! The rules of a file system, tested in any folder: in a mount of rackpool, and in the host's own
//! file systems, which confirm that the rules are right.
//!
//! | module | holds |
//! |---|---|
//! | [`place`] | the folder of one rule, and helpers for files in it |
//! | [`rules`] | POSIX, rule by rule |
//! | [`one_file`] | random operations on one file, compared with its bytes in memory |
//! | [`tree`] | random operations on a tree, compared with the same ones on another file system |
//! | [`user`] | operations as another user |

pub mod one_file;
pub mod place;
pub mod rules;
pub mod tree;
pub mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use place::Place;

/// A rule: its name, and the function that tests it in an empty folder and panics on a violation.
pub type Rule = (&'static str, fn(&Place));

/// Tests the rules whose names contain `filter`, each in a folder of its own below `root`. Returns
/// the names of the violated rules, with their panic messages.
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
