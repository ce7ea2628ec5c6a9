//! The rack that unauthenticated peers connect to, over any fabric.

use rackpool_fabric::conformance::pair::{End, memory_of, ok, read, transfer};
use rackpool_fabric::conformance::{Factory, Hardware};
use rackpool_fabric::{DisconnectReason, ErrorClass, Event, FabricError};
use rackpool_model::RackId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) fn rack(test: &impl Factory) -> End {
    End::alone(test.start(RackId(1), 4096, Hardware::FAST))
}

/// Checks that the rack still serves: another rack can connect to it and read.
pub(crate) fn still_serves(test: &impl Factory, end: &mut End) {
    let mut other = End::alone(test.start(RackId(2), 4096, Hardware::FAST));
    other.endpoint = ok(other.node.fabric.connect(&end.node.fabric.address()));
    other.wait("a connection", |event| matches!(event, Event::Connected { .. }));
    end.wait("the peer", |event| matches!(event, Event::Accepted { peer: RackId(2), .. }));
    let region = other.register(&memory_of(test, &[0; 64]));
    ok(other.post(&[read(1, transfer(region, 0, 0, 64))]));
    ok(other.completed(1));
    drop(other);
    end.wait("its end", |event| matches!(event, Event::Disconnected { .. }));
}

/// Waits until an endpoint ends because its peer misbehaved, and returns the error.
pub(crate) fn failed(end: &mut End) -> String {
    let ended = end.wait("the end", |event| matches!(event, Event::Disconnected { .. }));
    let Event::Disconnected { reason: DisconnectReason::Failed(error), .. } = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(error.class(), ErrorClass::Fatal);
    error.to_string()
}

/// Waits until a connection fails, and returns the error.
pub(crate) fn connect_failed(end: &mut End) -> FabricError {
    let failed = end.wait("the failure", |event| matches!(event, Event::ConnectFailed { .. }));
    let Event::ConnectFailed { error, .. } = failed else { panic!() };
    error
}

/// Lets this process open as many files as the system allows.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
