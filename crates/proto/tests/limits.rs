//! The limits on racks and names keep the pool's whole state within one message.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::Duration;

use rackpool_model::{GlobalAddr, Incarnation, MAX_RACKS, MemoryId, RackId};
use rackpool_proto::Time;
use rackpool_proto::metadata::{Action, ConnectionToken, Event, MetadataMachine};
use rackpool_wire::bounds::MAX_ADDRESS_BYTES;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement, Refusal, Tagged};

fn ask(machine: &mut MetadataMachine, request: MetadataRequest) -> MetadataReply {
    let from = ConnectionToken(1);
    machine.handle(Time::ZERO, Event::Requested { from, tag: 1, request });
    let mut answer = None;
    while let Some(action) = machine.poll() {
        match action {
            Action::Persist { batch, .. } => machine.handle(Time::ZERO, Event::Committed { batch }),
            Action::Reply { reply, .. } => answer = Some(reply),
            Action::Push { .. } | Action::Report(_) => {}
        }
    }
    answer.unwrap()
}

#[test]
fn the_largest_pool_fits_one_message() {
    let mut machine = MetadataMachine::restore(Time::ZERO, Duration::from_secs(2), 1, []).unwrap();
    let register = |rack: u16| {
        MetadataRequest::Register(RackAnnouncement {
            rack: RackId(rack),
            memory: MemoryId(rack.into()),
            incarnation: Incarnation(1),
            frames: 1,
            page_bytes: 4096,
            seen: None,
            control_path: "/".repeat(MAX_ADDRESS_BYTES),
            fabric_address: "f".repeat(MAX_ADDRESS_BYTES),
        })
    };
    for rack in 0..MAX_RACKS {
        let reply = ask(&mut machine, register(rack));
        assert!(matches!(reply, MetadataReply::Registered { .. }), "{reply:?}");
    }
    let reply = ask(&mut machine, register(MAX_RACKS));
    assert!(matches!(reply, MetadataReply::Refused(Refusal::Invalid(_))), "{reply:?}");

    let mut names = 0..;
    let refused = loop {
        let name = names.next().unwrap().to_string();
        let new = Some(GlobalAddr::from_raw(4096));
        let put = MetadataRequest::PutRoot { name, expected: None, new };
        if let MetadataReply::Refused(refusal) = ask(&mut machine, put) {
            break refusal;
        }
    };
    assert!(refused.to_string().contains("remove one"), "{refused}");

    // An existing name can still be changed, and removed to make room.
    let addr = Some(GlobalAddr::from_raw(4096));
    let put =
        |name: &str, expected, new| MetadataRequest::PutRoot { name: name.into(), expected, new };
    let other = Some(GlobalAddr::from_raw(8192));
    assert_eq!(
        ask(&mut machine, put("7", addr, other)),
        MetadataReply::Root { addr: other, changed: true }
    );
    let removed = ask(&mut machine, put("7", other, None));
    assert_eq!(removed, MetadataReply::Root { addr: None, changed: true });
    let again = ask(&mut machine, put(&"x".repeat(255), None, addr));
    assert!(matches!(again, MetadataReply::Refused(_)), "a longer name than the room made");
    let again = ask(&mut machine, put("x", None, addr));
    assert_eq!(again, MetadataReply::Root { addr, changed: true });

    let status = ask(&mut machine, MetadataRequest::Status);
    let frame = rackpool_wire::encode(&Tagged { tag: 1, message: status }).unwrap();
    assert!(frame.len() > 900_000, "{} B: the test does not reach the limit", frame.len());
}
