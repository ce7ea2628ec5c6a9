//! The runner on a server with a few commands.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::{Progress, Session, Target, WorkloadName, YcsbOptions, run};

#[test]
fn scores_are_those_of_java() {
    assert_eq!(java_hash(b""), 0);
    assert_eq!(java_hash(b"hello"), 99_162_322);
    assert_eq!(java_hash(b"polygenelubricants"), i32::MIN);
}

type Record = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
struct State {
    records: BTreeMap<Vec<u8>, Record>,
    index: BTreeSet<(i64, Vec<u8>)>,
    /// How often each command was received.
    commands: BTreeMap<String, u64>,
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn list<'a>(items: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let items: Vec<Vec<u8>> = items.map(|item| bulk(item)).collect();
    [format!("*{}\r\n", items.len()).into_bytes(), items.concat()].concat()
}

fn number(word: &[u8]) -> i64 {
    std::str::from_utf8(word).unwrap().parse().unwrap()
}

fn answer_to(words: &[Vec<u8>], state: &mut State) -> Vec<u8> {
    let command = String::from_utf8(words[0].clone()).unwrap();
    *state.commands.entry(command.clone()).or_default() += 1;
    match command.as_str() {
        "HSET" => {
            let record = state.records.entry(words[1].clone()).or_default();
            let fields = words[2..].chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            record.extend(fields);
            b":1\r\n".to_vec()
        }
        "HGETALL" => {
            let record = state.records.get(&words[1]).into_iter().flatten();
            list(record.flat_map(|(name, field)| [name, field]))
        }
        "HMGET" => match state.records.get(&words[1]).and_then(|record| record.get(&words[2])) {
            Some(field) => list([field].into_iter()),
            None => b"*1\r\n$-1\r\n".to_vec(),
        },
        "ZADD" => {
            let added = state.index.insert((number(&words[2]), words[3].clone()));
            format!(":{}\r\n", u8::from(added)).into_bytes()
        }
        "ZRANGEBYSCORE" => {
            let count = usize::try_from(number(&words[6])).unwrap();
            let from = state.index.range((number(&words[2]), Vec::new())..);
            list(from.take(count).map(|(_, key)| key))
        }
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

/// Serves a client until it disconnects.
fn serve(stream: UnixStream, state: &Mutex<State>) {
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    while from.read_line(&mut line).is_ok_and(|read| read > 0) {
        let words = line.trim_end().strip_prefix('*').unwrap().parse().unwrap();
        let words: Vec<Vec<u8>> = (0..words)
            .map(|_| {
                line.clear();
                from.read_line(&mut line).unwrap();
                let len: usize = line.trim_end().strip_prefix('$').unwrap().parse().unwrap();
                let mut word = vec![0; len + 2];
                from.read_exact(&mut word).unwrap();
                word.truncate(len);
                word
            })
            .collect();
        let answer = answer_to(&words, &mut state.lock().unwrap());
        from.get_mut().write_all(&answer).unwrap();
        line.clear();
    }
}

/// Starts a server at a socket; it ends with the test's process.
fn server(at: &Path) -> Arc<Mutex<State>> {
    let state = Arc::new(Mutex::new(State::default()));
    let (listener, shared) = (UnixListener::bind(at).unwrap(), Arc::clone(&state));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve(stream.unwrap(), &shared));
        }
    });
    state
}

fn run_on(at: &Path, options: &YcsbOptions) -> Session {
    let Ok(Target::Resp(server)) = format!("unix:{}", at.display()).parse() else {
        panic!("no target")
    };
    let plan = options.plan().unwrap();
    run(&plan, &RespStores::new(vec![server], &plan), Progress::new(true)).unwrap()
}

#[test]
fn every_workload_runs_verified_with_the_commands_of_ycsbs_binding() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("socket");
    let state = server(&at);
    let options = YcsbOptions {
        workloads: WorkloadName::ALL.to_vec(),
        records: 200,
        operations: 400,
        threads: 2,
        field_count: 3,
        field_length: 20,
        read_all_fields: false,
        verify: true,
        ..YcsbOptions::default()
    };
    assert_eq!(run_on(&at, &options).problems(), [""; 0]);
    let mut state = state.lock().unwrap();
    let names: Vec<&str> = state.commands.keys().map(String::as_str).collect();
    assert_eq!(names, ["HGETALL", "HMGET", "HSET", "ZADD", "ZRANGEBYSCORE"]);
    assert_eq!(state.records.len(), state.index.len());
    let fields: Vec<&[u8]> = vec![b"field0", b"field1", b"field2"];
    assert!(
        state
            .records
            .values()
            .all(|record| record.keys().map(Vec::as_slice).eq(fields.iter().copied()))
    );
    // A field with foreign contents is detected wherever it is read.
    for record in state.records.values_mut() {
        record.insert(b"field1".to_vec(), vec![0; 20]);
    }
    drop(state);
    for name in [WorkloadName::C, WorkloadName::E] {
        let again = YcsbOptions { workloads: vec![name], no_load: true, ..options.clone() };
        let problems = run_on(&at, &again).problems();
        assert!(problems.iter().any(|problem| problem.contains("values were wrong")), "{name:?}");
    }
}
