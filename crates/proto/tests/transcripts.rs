//! Runs the transcripts in `testdata/`: each is a specification of one part of the metadata
//! machine.
//!
//! A transcript is a list of blocks: commands, a line `----`, the machine's actions, an empty line.
//! `REWRITE=1 cargo test -p rackpool-proto --test transcripts` writes the machine's actions into
//! the files, for review as a diff.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod transcript;

use std::fmt::Write;
use std::path::Path;

use transcript::World;

fn run(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let expected = std::fs::read_to_string(&path).unwrap();
    let mut world = World::new();
    let mut found = String::new();
    let mut lines = expected.lines();
    while let Some(line) = lines.next() {
        writeln!(found, "{line}").unwrap();
        if line == "----" {
            found.push_str(&world.take_output());
            let skipped = lines.find(|line| line.is_empty());
            if skipped.is_some() {
                found.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            world.command(line);
        }
    }
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, found).unwrap();
    } else {
        assert_eq!(expected, found, "{name}: left is the file, right what the machine does");
    }
}

macro_rules! transcripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(concat!(stringify!($name), ".txt"));
        }
    )*};
}

transcripts!(registration takeover leases members directory roots commits restart limits swaps lost);

#[test]
fn every_transcript_is_run() {
    let known = include_str!("transcripts.rs");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for entry in std::fs::read_dir(files).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.strip_suffix(".txt").unwrap();
        let listed = known.lines().find(|line| line.starts_with("transcripts!(")).unwrap();
        assert!(listed.contains(stem), "{name} is not in transcripts!()");
    }
}
