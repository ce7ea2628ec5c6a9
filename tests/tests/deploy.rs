//! The files in deploy/ are valid.

use std::path::{Path, PathBuf};
use std::process::Command;

use rackpool_testing::skipped;
use rackpool_tests::client::program;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

#[test]
fn every_program_understands_the_example_configuration() {
    for (name, more) in [
        ("rackpool-metaserver", &["--credentials", "/nonexistent"][..]),
        ("rackpool-daemon", &["--rack", "3", "--credentials", "/nonexistent"]),
        ("rackpool", &["status", "--credentials", "/nonexistent"]),
    ] {
        let mut command = Command::new(program(name));
        let output = command.arg("--config").arg(deploy().join("pool.toml")).args(more).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        // A program ends with 2 for options that it does not know.
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("can't read /nonexistent: "), "{name}: {said}");
    }
}

#[test]
fn the_units_are_valid() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skipped("systemd-analyze is missing");
    }
    for (unit, instance) in [
        ("rackpool-metaserver.service", "rackpool-metaserver.service"),
        ("rackpool-daemon@.service", "rackpool-daemon@3.service"),
        ("rackpool-fuse@.service", "rackpool-fuse@main.service"),
        ("rackpool-kv@.service", "rackpool-kv@3.service"),
        ("rackpool-agent@.service", "rackpool-agent@3.service"),
    ] {
        let text = std::fs::read_to_string(deploy().join(unit)).unwrap();
        // The programs are not installed where the tests run.
        let here = format!("{}/rackpool", program("rackpool").parent().unwrap().display());
        let verify = |text: &str| {
            // In a folder of its own; otherwise systemd-analyze would also check the units that it
            // names.
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(instance);
            std::fs::write(&path, text.replace("/usr/local/bin/rackpool", &here)).unwrap();
            let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
            String::from_utf8(output.stderr).unwrap()
        };
        assert_eq!(verify(&text), "", "{unit}");
        // The check does detect an invalid unit.
        assert_ne!(verify(&text.replace("RestartSec=1", "RestartSec=soon")), "", "{unit}");
    }
}
