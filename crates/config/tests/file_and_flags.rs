//! Tests of a configuration file combined with a command line.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use rackpool_config::{ConfigFile, try_parse_from};

#[derive(Debug, Parser)]
struct Daemon {
    #[command(flatten)]
    config: ConfigFile,
    #[arg(long)]
    rack: u16,
    #[arg(long, default_value = "/dev/shm/rackpool")]
    dir: PathBuf,
    #[arg(long, default_value_t = 2.0)]
    latency_us: f64,
    #[arg(long)]
    stop_with_stdin: bool,
    #[arg(long, value_delimiter = ',')]
    peers: Vec<u16>,
}

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    config: ConfigFile,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Status {
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    Add {
        folder: PathBuf,
        #[arg(long)]
        days: Option<u32>,
    },
}

/// Parses with a file of this text; errors without the folder's name.
fn parse<O: Parser>(section: &str, text: &str, words: &[&str]) -> Result<O, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pool.toml");
    std::fs::write(&file, text).unwrap();
    let mut all: Vec<OsString> = vec!["program".into(), "--config".into(), file.into()];
    all.extend(words.iter().map(OsString::from));
    let prefix = format!("{}/", folder.path().display());
    try_parse_from(section, all).map_err(|error| error.to_string().replace(&prefix, ""))
}

fn daemon(text: &str, words: &[&str]) -> Result<Daemon, String> {
    parse("daemon", text, words)
}

#[test]
fn a_file_stands_for_flags_and_flags_win() {
    let text = "[metaserver]\nanything = 1\n[daemon]\nrack = 7\ndir = '/mnt/pool'\nlatency-us = 3.5\n\
                stop-with-stdin = true\npeers = [1, 0x10]\n";
    let options = daemon(text, &[]).unwrap();
    assert_eq!((options.rack, options.latency_us), (7, 3.5));
    assert_eq!(options.dir, PathBuf::from("/mnt/pool"));
    assert!(options.stop_with_stdin);
    assert_eq!(options.peers, [1, 16]);
    assert!(options.config.config.is_some());
    let options = daemon(text, &["--rack", "8", "--peers=2,3", "--latency-us", "2.0"]).unwrap();
    assert_eq!((options.rack, options.latency_us), (8, 2.0), "also where it is the default");
    assert_eq!(options.peers, [2, 3]);
}

#[test]
fn what_the_file_leaves_out_has_its_default() {
    let options = daemon("[daemon]\nstop-with-stdin = false\n", &["--rack", "1"]).unwrap();
    assert_eq!(options.dir, PathBuf::from("/dev/shm/rackpool"));
    assert!(!options.stop_with_stdin);
    let missing = daemon("[daemon]\n", &[]).unwrap_err();
    assert!(missing.contains("--rack"), "{missing}");
}

#[test]
fn errors_name_file_line_and_key() {
    let cases = [
        ("[daemon]\nrack = 1\nmemroy = 2\n", "pool.toml:3: memroy: there is no such option"),
        ("[daemon]\nrack = 'x'\n", "pool.toml:2: rack: invalid value 'x' for '--rack <RACK>'"),
        ("[daemon]\nrack = -1\n", "pool.toml:2: rack: invalid value '-1'"),
        ("[daemon]\nrack = true\n", "pool.toml:2: rack: it takes a value"),
        ("[daemon]\nrack = [1]\n", "pool.toml:2: rack: it takes one value"),
        ("[daemon]\nrack = {}\n", "pool.toml:2: rack: no option takes such a value"),
        ("[daemon]\n\nstop-with-stdin = 1", "pool.toml:3: stop-with-stdin: it is true or false"),
        ("[daemon]\nconfig = 'x'\n", "pool.toml:2: config: there is no such option"),
        (
            "[deamon]\n",
            "pool.toml:1: deamon: the sections are [metaserver], [daemon], [rackpool], [kv], [fuse]",
        ),
        ("rack = 1\n", "pool.toml:1: rack: an option stands under its program"),
        ("[daemon]\nrack 1\n", "pool.toml:2: "),
        ("[daemon]\nrack = 1\nrack = 1\n", "pool.toml:3: "),
    ];
    for (text, expected) in cases {
        let words: &[&str] = if text.contains("rack =") { &[] } else { &["--rack", "1"] };
        let error = daemon(text, words).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let missing =
        try_parse_from::<Daemon>("daemon", ["p", "--config=/nonexistent"].map(Into::into));
    assert!(missing.unwrap_err().to_string().contains("can't read /nonexistent"));
}

#[test]
fn errors_of_the_command_line_stay_what_they_are() {
    let error = daemon("[daemon]\nrack = 1\n", &["--latency-us", "x"]).unwrap_err();
    assert!(error.starts_with("error: invalid value 'x' for '--latency-us"), "{error}");
}

#[test]
fn a_section_serves_the_subcommands_that_have_the_option() {
    let text = "[rackpool]\ndir = '/a'\ndays = 3\n";
    let Command { what: What::Status { dir }, .. } = parse("rackpool", text, &["status"]).unwrap()
    else {
        panic!("another subcommand")
    };
    assert_eq!(dir, Some("/a".into()));
    let words = ["add", "/credentials"];
    let Command { what: What::Add { folder, days }, config } =
        parse("rackpool", text, &words).unwrap()
    else {
        panic!("another subcommand")
    };
    assert_eq!((folder, days), ("/credentials".into(), Some(3)));
    assert!(config.config.is_some());
    let error = parse::<Command>("rackpool", "[rackpool]\nx = 1", &["status"]).unwrap_err();
    assert_eq!(error, "pool.toml:2: x: there is no such option");
}
