//! The programs of this project as files.

use std::path::PathBuf;

use anyhow::Context;

/// Finds a program of this project: beside this one, or in the build folder.
pub fn find_program(program: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("can't find this program's own file")?;
    own.ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .with_context(|| {
            format!("{program} is not in the folder of {}: install it there, or build all programs with `cargo build`", own.display())
        })
}
