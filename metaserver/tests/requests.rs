//! Requests of racks and operators to a metadata server, over its socket.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use nix::sys::signal::Signal;
use rackpool_model::{GlobalAddr, Incarnation, PageId, PageRange, RackId};
use rackpool_testing::wait::{TIMEOUT, wait_for};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};
use support::{Server, announcement, put};

#[test]
fn racks_register_and_pages_are_located() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut one = server.connect();
    let mut two = server.connect();
    assert_eq!(one.register(1, 11, 1), PageRange { first: PageId(1), count: 100 });
    assert_eq!(two.register(2, 22, 1), PageRange { first: PageId(101), count: 100 });

    let mut locate = |page| one.ask(MetadataRequest::Locate { page: PageId(page) });
    let pages = PageRange { first: PageId(101), count: 100 };
    assert_eq!(locate(150), MetadataReply::Located { pages, home: RackId(2) });
    assert_eq!(locate(0), MetadataReply::NoSuchPage);
    assert_eq!(locate(201), MetadataReply::NoSuchPage);

    let MetadataReply::Renewed { position, version, members } = one.heartbeat(1, 1, 0) else {
        panic!()
    };
    assert_eq!(members.len(), 2);
    assert!(members.iter().all(|member| member.alive));
    let again = one.heartbeat(1, 1, version);
    assert_eq!(again, MetadataReply::Renewed { position, version, members: vec![] });

    let status = one.status();
    assert_eq!((status.page_bytes, status.lease_ms, status.version), (2 << 20, 2000, version));
    assert!(status.store_bytes > 0);
    // Other memory while the lease is valid.
    let taken = two.ask(MetadataRequest::Register(announcement(1, 12, 2)));
    assert!(matches!(taken, MetadataReply::Refused(Refusal::RackTaken { .. })), "{taken:?}");
}

#[test]
fn names_are_compared_and_swapped() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut connection = server.connect();
    let addr = Some(GlobalAddr::from_raw(64));
    assert_eq!(connection.get("tree"), None);
    assert_eq!(connection.ask(put("tree", 64)), MetadataReply::Root { addr, changed: true });
    assert_eq!(connection.ask(put("tree", 128)), MetadataReply::Root { addr, changed: false });
    assert_eq!(connection.get("tree"), addr);
    let roots = vec![("tree".to_string(), GlobalAddr::from_raw(64))];
    assert_eq!(connection.status().roots, roots);
}

#[test]
fn a_lease_runs_out_and_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["--lease-ms", "1000"]);
    let mut connection = server.connect();
    connection.register(1, 11, 1);
    connection.register(2, 22, 1);
    let version = connection.status().version;
    // Rack 1 sends heartbeats, rack 2 does not.
    let members =
        wait_for("death of rack 2", TIMEOUT, || match connection.heartbeat(1, 1, version) {
            MetadataReply::Renewed { version: newer, members, .. } if newer > version => {
                Some(members)
            }
            MetadataReply::Renewed { .. } => None,
            other => panic!("{other:?}"),
        });
    assert_eq!(members.iter().map(|member| member.alive).collect::<Vec<_>>(), [true, false]);
    let dead = connection.heartbeat(2, 1, version);
    assert_eq!(dead, MetadataReply::Refused(Refusal::NotMember(RackId(2))));
    server.wait_for_log("rack 2 sent no heartbeat");

    let leave = MetadataRequest::Leave { rack: RackId(1), incarnation: Incarnation(1) };
    // The lease may have run out by now; a Leave is fine all the same.
    assert_eq!(connection.ask(leave), MetadataReply::Left);
    // Then the rack may register other memory, with new pages.
    assert_eq!(connection.register(1, 12, 2).first, PageId(201));
    let lost = connection.ask(MetadataRequest::Locate { page: PageId(1) });
    assert_eq!(lost, MetadataReply::PageLost);
    assert_eq!(connection.status().lost_pages, 100);
}

#[test]
fn racks_are_told_of_the_others_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["--lease-ms", "60000"]);
    let mut one = server.connect();
    one.register(1, 11, 1);
    let MetadataReply::Renewed { version, .. } = one.heartbeat(1, 1, 0) else { panic!() };
    // Rack 1 sends nothing, and is told when rack 2 joins and leaves.
    let mut two = server.connect();
    two.register(2, 22, 1);
    let MetadataReply::Members { version: joined, members } = one.pushed() else { panic!() };
    assert!(joined > version);
    assert_eq!(members.iter().map(|member| member.alive).collect::<Vec<_>>(), [true, true]);
    assert!(matches!(
        one.heartbeat(1, 1, joined),
        MetadataReply::Renewed { version, members, .. } if version == joined && members.is_empty()
    ));
    two.ask(MetadataRequest::Leave { rack: RackId(2), incarnation: Incarnation(1) });
    let MetadataReply::Members { version: left, members } = one.pushed() else { panic!() };
    assert!(left > joined);
    assert_eq!(members.iter().map(|member| member.alive).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_restart_evicts_nobody_and_versions_grow() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["--lease-ms", "60000"]);
    let mut connection = server.connect();
    connection.register(1, 11, 1);
    let before = connection.status().version;
    assert!(server.stop(Signal::SIGTERM).success());
    assert!(!directory.path().join("address").exists());

    let server = Server::start(directory.path(), &["--lease-ms", "60000"]);
    let mut connection = server.connect();
    let MetadataReply::Renewed { version, members, .. } = connection.heartbeat(1, 1, before) else {
        panic!("evicted")
    };
    assert!(version > before);
    assert!(members[0].alive);
    assert!(server.stop(Signal::SIGINT).success());
}
