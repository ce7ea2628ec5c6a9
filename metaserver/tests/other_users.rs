//! Without credentials a pool belongs to one user of its host.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::net::{TcpListener, TcpStream};

use nix::unistd::{Uid, setfsuid};
use rackpool_access::{CredentialsError, require_server_of_same_user};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};
use support::{Server, announcement};

const OTHER_USER: u32 = 65534;

fn can_act_as_other_user() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        rackpool_testing::skipped("only root can act as another user");
    }
    root
}

/// Runs `act` in a thread whose sockets belong to another user.
fn as_other_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            setfsuid(Uid::from_raw(OTHER_USER));
            act()
        });
        acting.join().unwrap()
    })
}

#[test]
fn a_process_of_another_user_is_told_so_and_not_served() {
    if !can_act_as_other_user() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    for request in [MetadataRequest::Status, MetadataRequest::Register(announcement(1, 2, 3))] {
        let mut unauthenticated_peer = as_other_user(|| server.connect());
        unauthenticated_peer.send(request).unwrap();
        match unauthenticated_peer.receive().unwrap().message {
            MetadataReply::Refused(Refusal::Denied(reason)) => {
                assert!(reason.contains("belongs to user 65534"), "{reason}");
                assert!(reason.contains("rackpool credentials init"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut own = server.connect();
    own.send(MetadataRequest::Status).unwrap();
    let answer = own.receive().unwrap().message;
    assert!(matches!(answer, MetadataReply::Status(_)), "{answer:?}");
}

#[test]
fn a_server_of_another_user_is_not_spoken_to() {
    if !can_act_as_other_user() {
        return;
    }
    let listener = as_other_user(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let judged = || {
        let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        require_server_of_same_user(ends.0, ends.1)
    };
    let expect_other_user = |when: &str| {
        let judged = judged();
        assert!(
            matches!(judged, Err(CredentialsError::OtherUser { user: OTHER_USER, .. })),
            "{when}: {judged:?}"
        );
    };
    expect_other_user("before it accepts");
    let _accepted = as_other_user(|| listener.accept().unwrap());
    expect_other_user("after it has accepted");
}
