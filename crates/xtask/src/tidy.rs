//! Rules that no lint can check. Every violation names its place and how to fix it.

mod architecture;
mod definitions;
mod documents;
mod glossary;
mod headings;
mod import_arrows;
mod lengths;
mod markers;
pub(crate) mod rust_source;
mod semantics;
mod shell_pipelines;
mod sync_pairs;
mod unsafe_fence;

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::tree::Tree;
use definitions::Definitions;

/// A broken rule: its place, what is wrong, and how to fix it.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl Violation {
    fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Prints every violation in the tree below `root`.
///
/// # Errors
/// When there is one, or when the tree cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let members = tree.members()?;
    let definitions = Definitions::of(&tree);
    let mut violations = Vec::new();
    violations.extend(import_arrows::check(&members));
    violations.extend(documents::check(&tree));
    violations.extend(lengths::check(&tree));
    violations.extend(markers::check(&tree));
    violations.extend(shell_pipelines::check(&tree));
    violations.extend(unsafe_fence::check(&tree));
    violations.extend(glossary::check(&tree));
    violations.extend(sync_pairs::check(&tree, &definitions));
    violations.extend(semantics::check(&tree, &definitions));
    violations.extend(architecture::check(&tree, &members));
    for violation in &violations {
        println!("{violation}");
    }
    ensure!(violations.is_empty(), "{} violations of the rules above", violations.len());
    println!("{} files are tidy", tree.files.len());
    Ok(())
}
