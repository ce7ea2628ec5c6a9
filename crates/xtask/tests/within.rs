//! `cargo x within`: a program that runs too long, or leaves processes behind, fails and is killed.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

use std::process::{Command, Output};

use nix::sys::signal::kill;
use nix::unistd::Pid;

fn within(seconds: &str, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rackpool-xtask"))
        .args(["within", seconds, "sh", "-c", line])
        .output()
        .unwrap()
}

fn printed_id(output: &Output) -> Pid {
    Pid::from_raw(String::from_utf8_lossy(&output.stdout).trim().parse().unwrap())
}

#[test]
fn what_ends_in_time_and_leaves_nothing_passes() {
    let output = within("20", "echo done");
    assert!(output.status.success());
    assert_eq!(output.stdout, b"done\n");
    let output = within("20", "exit 3");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("exit status: 3"));
}

#[test]
fn what_takes_too_long_is_killed_with_all_that_it_started() {
    // A process in a session of its own, whose parent ends at once: neither hides it.
    let output = within("1", "(setsid sleep 1000 & echo $!); exec sleep 1000");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("ran longer than its limit of 1 s"), "{error}");
    assert!(kill(printed_id(&output), None).is_err(), "it is still running: {error}");
}

#[test]
fn what_leaves_processes_running_fails_and_they_are_killed() {
    let output = within("20", "setsid sleep 1000 >/dev/null 2>&1 & echo $!");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("left processes running; killed: sleep ("), "{error}");
    assert!(kill(printed_id(&output), None).is_err(), "it is still running: {error}");
}
