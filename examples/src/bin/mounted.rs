//! Shows that any program can read what another rack wrote, through the file system of the pool.
//!
//! This program uses nothing of rackpool: it writes a file in one mount with `std::fs` and has
//! `sha256sum` read it in the other. Run each of these in a terminal of its own:
//!
//! ```sh
//! cargo run --release --bin rackpool -- up --racks 2
//! mkdir -p /tmp/rack-0 /tmp/rack-1
//! cargo run --release --bin rackpool-fuse -- /tmp/rack-0 --rack 0
//! cargo run --release --bin rackpool-fuse -- /tmp/rack-1 --rack 1
//! cargo run --release -p rackpool-examples --bin mounted -- /tmp/rack-0 /tmp/rack-1
//! ```

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Write a file in one mount, and read it in the other.
#[derive(Parser)]
struct Options {
    /// The mount to write in.
    writer: PathBuf,
    /// The mount to read in.
    reader: PathBuf,
}

/// Runs `sha256sum` with these arguments and this input; returns the digest.
fn sha256sum(arguments: &[&Path], input: &[u8]) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().context("sha256sum does not start")?;
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(input).context("sha256sum does not read its input")?;
    }
    let output = process.wait_with_output()?;
    ensure!(output.status.success(), "sha256sum ended with {}", output.status);
    let line = String::from_utf8(output.stdout)?;
    Ok(line.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

/// The number of the file system that a folder belongs to.
fn file_system(folder: &Path) -> Result<u64> {
    let metadata = fs::metadata(folder).with_context(|| format!("{}", folder.display()))?;
    Ok(metadata.dev())
}

fn main() -> Result<()> {
    let Options { writer, reader } = Options::parse();
    ensure!(
        file_system(&writer)? != file_system(&reader)?,
        "{} and {} are not two mounts: start a rackpool-fuse for each",
        writer.display(),
        reader.display()
    );
    let name = format!("example-{}", std::process::id());
    let (written, read) = (writer.join(&name), reader.join(&name));
    let contents: Vec<u8> = (0..250_000_u32).flat_map(u32::to_le_bytes).collect();

    // An open in any mount sees all that was written before a close in another one, and `write`
    // closes the file.
    fs::write(&written, &contents).with_context(|| format!("{}", written.display()))?;
    let digest = sha256sum(&[&read], &[]);
    fs::remove_file(&written)?;
    let digest = digest.with_context(|| format!("{} can't be read", read.display()))?;
    ensure!(digest == sha256sum(&[], &contents)?, "sha256sum read other bytes than were written");
    ensure!(!read.exists(), "{} is still there after its removal", read.display());

    let (bytes, reader) = (contents.len(), reader.display());
    println!("sha256sum read the {bytes} B in {reader} as they were written: {digest}");
    Ok(())
}
