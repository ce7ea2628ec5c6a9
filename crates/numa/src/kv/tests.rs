use std::collections::BTreeSet;
use std::sync::mpsc::channel;

use rackpool_model::{FabricKind, RackId};
use rackpool_sync::atomic::Ordering;

use super::store::Store;
use super::*;
use crate::Workload;
use crate::connection::{Arrival, Connection};
use crate::fabrics::FabricChoice;
use crate::measurement::Recorder;
use crate::memory::Buffer;
use crate::one_sided::Driver;
use crate::server::{ServerPlan, ServerSignals};
use crate::threads::{Idle, TIMEOUT};

#[test]
fn all_connections_have_keys_of_their_own() {
    let all = crate::MAX_QUEUE_PAIRS * KEYS;
    let keys: BTreeSet<Key> = (0..all).map(key).collect();
    assert_eq!(keys.len(), all as usize);
    assert!(first_value(1) != first_value(2));
    assert!(first_value(1).iter().all(u8::is_ascii_alphanumeric));
}

/// Runs a server for one connection, calls `with` with the connection, and returns the server's
/// memory.
fn with_server(with: impl FnOnce(&mut Connection)) -> Buffer {
    let folder = tempfile::tempdir().unwrap();
    let fabric =
        FabricChoice { kind: FabricKind::Emulated, rdma_device: None, folder: folder.path() };
    let plan = ServerPlan {
        fabric,
        modelled: None,
        workload: Workload::KeyValue,
        connections: 1,
        request_time: None,
        card_cpus: &[],
        memory_cpus: &[],
        idle: Idle::Yield,
    };
    let memory = Buffer::new(plan.memory_bytes(67), None).unwrap();
    let signals = ServerSignals::default();
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let server = scope.spawn(|| plan.run(&memory, &signals, sender));
        let address = receiver.recv_timeout(TIMEOUT).unwrap();
        let own = Buffer::new(KeyValueClient::buffer_bytes(), None).unwrap();
        let mut connection = Connection::start(&fabric, RackId(1), own, None, &address).unwrap();
        connection.wait_until_connected().unwrap();
        signals.is_measuring.store(true, Ordering::Release);
        with(&mut connection);
        signals.stop.store(true, Ordering::Release);
        server.join().unwrap().unwrap();
    });
    memory
}

#[test]
fn values_that_were_stored_are_returned() {
    // With two keys, nearly every get follows a set of its key, and the client checks each value.
    let mut client = KeyValueClient::new(0, 2);
    let memory = with_server(|connection| {
        let mut recorder = Recorder::new(None);
        client.start(connection).unwrap();
        while recorder.completed < 400 {
            client.advance(connection, &mut recorder).unwrap();
            std::thread::yield_now();
        }
    });
    let values: Vec<(u32, Value)> = client.values().map(|(at, value)| (at, *value)).collect();
    assert!(values.iter().all(|(number, value)| *value != first_value(*number)), "none was set");
    for (number, value) in values {
        let mut found = [0; VALUE_BYTES as usize];
        memory
            .mapping
            .read(u64::from(number) * Store::bytes(1) / u64::from(KEYS), &mut found)
            .unwrap();
        // The last request may be a set that is not complete yet; the other key's value is there.
        assert!(found == value || number == client.current_key(), "key {number}");
    }
}

#[test]
fn keys_that_are_not_there_are_missing_and_other_bytes_end_the_connection() {
    with_server(|connection| {
        let mut arrivals = Vec::new();
        let request = message::Request::Get(*b"???");
        connection.send(request.encode()).unwrap();
        while arrivals.is_empty() {
            connection.poll(&mut arrivals).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(arrivals, [Arrival::Message(message::Reply::Missing.encode())]);
        connection.send(b"nonsense".to_vec()).unwrap();
        let refused = loop {
            if let Err(error) = connection.poll(&mut arrivals) {
                break error;
            }
            std::thread::yield_now();
        };
        assert!(refused.to_string().contains("ended"), "{refused}");
    });
}
