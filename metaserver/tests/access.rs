//! A party with credentials is served as the party that they name; other peers are refused.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use rackpool_access::{Authority, Credentials, Party, explain};
use rackpool_model::{Incarnation, RackId};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};
use support::{Server, Tls, announcement, put};

/// The credentials of a pool: of the metadata server, of racks 0 and 1, and of an operator.
struct Folder {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(folder.path()).unwrap();
        for party in ["metadata", "operator", "rack-0", "rack-1"] {
            authority.issue(party.parse().unwrap(), 30, false).unwrap();
        }
        Self { folder, authority }
    }

    fn of(&self, party: &str) -> Credentials {
        Credentials::load(&self.folder.path().join(party)).unwrap()
    }

    fn server(&self, directory: &Path, more: &[&str]) -> Server {
        let own = self.folder.path().join("metadata");
        let mut arguments = vec!["--credentials", own.to_str().unwrap()];
        arguments.extend(more);
        Server::start(directory, &arguments)
    }
}

/// Returns why a peer with these credentials is refused.
fn refused(server: &Server, credentials: &Credentials) -> String {
    let error = Tls::connect(server, credentials).try_ask(MetadataRequest::Status).unwrap_err();
    explain(&error)
}

#[test]
fn who_has_no_credentials_is_told_so_and_not_served() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let server = pool.server(directory.path(), &[]);
    let mut unauthenticated_peer = server.connect();
    unauthenticated_peer.send(MetadataRequest::Status).unwrap();
    match unauthenticated_peer.receive().unwrap().message {
        MetadataReply::Refused(Refusal::Denied(reason)) => {
            assert!(reason.contains("--credentials"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(unauthenticated_peer.receive(), None);
    server.wait_for_log("it has no credentials");

    let foreign = Folder::new().of("rack-0");
    let reason = refused(&server, &foreign);
    assert!(reason.contains("another authority"), "{reason}");
    let mut operator = Tls::connect(&server, &pool.of("operator"));
    assert!(matches!(operator.ask(MetadataRequest::Status), MetadataReply::Status(_)));
}

#[test]
fn credentials_that_have_expired_are_refused_on_both_sides() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    // Credentials that expired half an hour ago. The rack has loaded its own while they were valid.
    let past = SystemTime::now() - Duration::from_secs(1800);
    let short = pool.authority.issue_at(past, Party::Rack(RackId(7)), 0, true).unwrap();
    let short = Credentials::load_at(past, &short).unwrap();
    let server = pool.server(directory.path(), &[]);
    let reason = refused(&server, &short);
    assert!(reason.contains("this certificate has expired"), "{reason}");
    server.wait_for_log("the other side's certificate has expired");

    let own = pool.authority.issue_at(past, Party::MetadataServer, 0, true).unwrap();
    server.stop(Signal::SIGTERM);
    let arguments = ["--credentials", own.to_str().unwrap()];
    let (code, log) = Server::fail(directory.path(), &arguments);
    assert_eq!(code, Some(1));
    assert!(log.contains("expired 0 days ago") && log.contains("--renew"), "{log}");
}

#[test]
fn a_rack_registers_renews_and_leaves_as_itself_only() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let server = pool.server(directory.path(), &[]);
    let mut rack = Tls::connect(&server, &pool.of("rack-0"));
    rack.register(0, 1);
    let mut other = Tls::connect(&server, &pool.of("rack-1"));
    let mut operator = Tls::connect(&server, &pool.of("operator"));
    let (id, incarnation) = (RackId(0), Incarnation(1));
    let heartbeat =
        MetadataRequest::Heartbeat { rack: id, incarnation, free_frames: 0, seen_version: 0 };
    for request in [
        MetadataRequest::Register(announcement(0, 1, 2)),
        heartbeat.clone(),
        MetadataRequest::Leave { rack: id, incarnation },
    ] {
        for requester in [&mut other, &mut operator] {
            let answer = requester.ask(request.clone());
            let MetadataReply::Refused(Refusal::Denied(reason)) = answer else {
                panic!("{answer:?}")
            };
            assert!(reason.contains("can't make requests for rack 0"), "{reason}");
        }
    }
    assert!(matches!(operator.ask(put("a", 1)), MetadataReply::Refused(Refusal::Denied(_))));
    assert!(matches!(other.ask(put("a", 1)), MetadataReply::Root { changed: true, .. }));
    assert!(matches!(rack.ask(heartbeat), MetadataReply::Renewed { .. }), "its lease is untouched");
}

#[test]
fn all_racks_get_the_pools_key_until_the_operator_wants_a_new_one() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let server = pool.server(directory.path(), &[]);
    let key = Tls::connect(&server, &pool.of("rack-0")).register(0, 1);
    assert_eq!(Tls::connect(&server, &pool.of("rack-1")).register(1, 1), key);
    let log = server.log();
    server.kill();
    let server = pool.server(directory.path(), &[]);
    assert_eq!(Tls::connect(&server, &pool.of("rack-0")).register(0, 1), key, "durable");
    server.kill();
    let server = pool.server(directory.path(), &["--new-fabric-key"]);
    let renewed = Tls::connect(&server, &pool.of("rack-0")).register(0, 1);
    assert_ne!(renewed, key);
    assert_eq!(Tls::connect(&server, &pool.of("rack-1")).register(1, 1), renewed);
    for log in [log, server.log()] {
        let shown = format!("{:?}", key.bytes());
        assert!(!log.contains(shown.trim_matches(['[', ']'])), "the key is in the log");
    }
}

#[test]
fn with_credentials_any_address_may_be_listened_on() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let mut command = Command::new(Server::command(directory.path(), &[]).get_program());
    command.args(["--listen", "0.0.0.0:0", "--store"]).arg(directory.path().join("store"));
    command.arg("--address-file").arg(directory.path().join("address"));
    command.arg("--credentials").arg(pool.folder.path().join("metadata"));
    let server = Server::run(command, directory.path());
    assert!(server.address.ip().is_unspecified());
    server.wait_for_log("with credentials");
}

#[test]
fn credentials_of_another_party_make_no_metadata_server() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let own = pool.folder.path().join("rack-0");
    let arguments = ["--credentials", own.to_str().unwrap()];
    let (code, log) = Server::fail(directory.path(), &arguments);
    assert_eq!(code, Some(1));
    assert!(log.contains("credentials of rack-0, those of metadata are needed"), "{log}");
    assert!(!directory.path().join("store").exists(), "nothing is touched");
}

#[test]
fn who_speaks_tls_to_a_server_without_credentials_is_named_in_the_log() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let server = Server::start(directory.path(), &[]);
    let reason = refused(&server, &pool.of("rack-0"));
    assert!(reason.contains("--credentials"), "{reason}");
    server.wait_for_log("it uses TLS, but this server was started without --credentials");
}

#[test]
fn a_configuration_file_says_the_same_as_flags() {
    let (directory, pool) = (tempfile::tempdir().unwrap(), Folder::new());
    let file = directory.path().join("pool.toml");
    let own = pool.folder.path().join("metadata");
    let text = format!("[metaserver]\nlease-ms = 777\ncredentials = '{}'\n", own.display());
    std::fs::write(&file, text).unwrap();
    let server = Server::start(directory.path(), &["--config", file.to_str().unwrap()]);
    let mut operator = Tls::connect(&server, &pool.of("operator"));
    match operator.ask(MetadataRequest::Status) {
        MetadataReply::Status(status) => assert_eq!(status.lease_ms, 777),
        other => panic!("{other:?}"),
    }
    std::fs::write(&file, "[metaserver]\nleases-ms = 1\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let (code, said) = Server::fail(directory.path(), &arguments);
    assert_eq!(code, Some(2));
    assert!(said.contains("pool.toml:2: leases-ms: there is no such option"), "{said}");
}
