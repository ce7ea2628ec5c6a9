//! A device limited to the least that connections need, on hosts with an RDMA port: the conformance
//! suite, and the refusals below that limit.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::sync::Arc;

use common::{Verbs, is_there};
use rackpool_fabric::conformance::pair::{FRAMES_LEN, Pair, memory_of, ok, transfer, write};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::{FabricError, MemoryRegion};
use rackpool_fabric_verbs::{DeviceLimits, VerbsFabric, VerbsStartError};
use rackpool_model::{Incarnation, RackId};

/// Racks that use the device only up to these limits.
struct Frugal(DeviceLimits);

const FRUGAL: Frugal = Frugal(DeviceLimits::LEAST);

impl Frugal {
    fn open(
        &self,
        (rack, incarnation): (RackId, Incarnation),
        frames: &Arc<dyn MemoryRegion>,
    ) -> Result<VerbsFabric, VerbsStartError> {
        let mut options = Verbs::options(rack, frames);
        options.incarnation = incarnation;
        options.limits = self.0;
        VerbsFabric::new(options)
    }
}

impl Factory for Frugal {
    fn start_incarnation(
        &self,
        rack: (RackId, Incarnation),
        frames_len: u64,
        _hardware: Hardware,
    ) -> Node {
        let frames = self.memory(frames_len);
        let fabric = self.open(rack, &frames).unwrap();
        Node { fabric: Box::new(fabric), frames }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        Verbs.memory(len)
    }

    fn nowhere(&self) -> String {
        Verbs.nowhere()
    }

    fn models_time(&self) -> bool {
        false
    }
}

mod frugal {
    rackpool_fabric::conformance_tests!(crate::FRUGAL, if crate::is_there());
}

#[test]
fn a_transfer_is_cut_into_requests_that_the_device_takes() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::new(&FRUGAL, Hardware::FAST);
    let len = 10 * DeviceLimits::LEAST.message;
    let region = pair.a.register(&Verbs.memory(len.into()));
    let before = pair.a.fabric().device_counters().requests;
    ok(pair.a.post(&[write(1, transfer(region, 0, 0, len))]));
    ok(pair.a.completed(1));
    let cut = pair.a.fabric().device_counters().requests - before;
    assert_eq!(cut, 10);
}

#[test]
fn a_device_that_can_do_less_is_refused() {
    if !is_there() {
        return;
    }
    let frames = Verbs.memory(4096);
    let refusal = |limits| {
        Frugal(limits).open((RackId(1), Incarnation(1)), &frames).err().unwrap().to_string()
    };
    let least = DeviceLimits::LEAST;
    let said = refusal(DeviceLimits { queue: least.queue - 1, ..least });
    let expected =
        format!("work requests in a queue: {}, and {} are needed", least.queue - 1, least.queue);
    assert!(said.contains(&expected), "{said}");
    let said = refusal(DeviceLimits { registration: 4095, ..least });
    assert!(said.contains("4096 B, and the device registers at most 4095 B at once"), "{said}");
}

#[test]
fn memory_that_is_too_long_for_the_device_fails_what_is_posted_with_it_and_nothing_else() {
    if !is_there() {
        return;
    }
    let limits = DeviceLimits { registration: FRAMES_LEN, ..DeviceLimits::LEAST };
    let mut pair = Pair::new(&Frugal(limits), Hardware::FAST);
    let long = pair.a.register(&Verbs.memory(FRAMES_LEN + 8));
    let short = pair.a.register(&memory_of(&Verbs, &[7; 8]));
    let error = pair.a.post(&[write(1, transfer(long, 0, 0, 8))]).unwrap_err();
    assert!(matches!(&error, FabricError::Local { .. }), "{error:?}");
    let why = format!("the device registers at most {FRAMES_LEN} B at once");
    assert!(error.to_string().contains(&why), "{error}");
    ok(pair.a.post(&[write(2, transfer(short, 0, 0, 8))]));
    ok(pair.a.completed(2));
}
