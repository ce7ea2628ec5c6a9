//! Credentials can be used by the party that they name, and by no other.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rackpool_access::{Authority, Credentials, CredentialsError, Party, explain};
use rackpool_model::RackId;
use rustls::{ClientConnection, ServerConnection};

const RACK: Party = Party::Rack(RackId(3));

fn issue(authority: &Authority, party: Party) -> Credentials {
    Credentials::load_of(&authority.issue(party, 30, false).unwrap(), party).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Returns the results of the client's and the server's side of a handshake.
fn shake(client: &Credentials, server: &Credentials) -> [Result<(), String>; 2] {
    let mut client =
        ClientConnection::new(client.client().unwrap(), client.server_name().unwrap()).unwrap();
    let mut server = ServerConnection::new(server.server().unwrap()).unwrap();
    let say = |error: rustls::Error| explain(&io::Error::new(io::ErrorKind::InvalidData, error));
    let mut results = [Ok(()), Ok(())];
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && results[1].is_ok() {
            server.read_tls(&mut rest).unwrap();
            results[1] = server.process_new_packets().map(drop).map_err(say);
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        if !bytes.is_empty() {
            client.read_tls(&mut bytes.as_slice()).unwrap();
            results[0] = client.process_new_packets().map(drop).map_err(say);
        }
        if results.iter().any(Result::is_err) {
            return results;
        }
    }
    let seen = server.peer_certificates().unwrap();
    assert_eq!(Party::of_certificate(&seen[0]), Some(RACK), "the server knows who came");
    assert!(!client.is_handshaking() && !server.is_handshaking());
    results
}

#[test]
fn a_rack_and_the_metadata_server_of_one_authority_know_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let made = Authority::create(folder.path()).unwrap();
    let server = issue(&made, Party::MetadataServer);
    // A later process opens the folder and signs under the same authority name.
    let again = Authority::open(folder.path()).unwrap();
    let rack = issue(&again, RACK);
    assert_eq!(shake(&rack, &server), [Ok(()), Ok(())]);
    assert!(!rack.expire_within(Duration::from_secs(29 * 86_400)));
    assert!(rack.expire_within(Duration::from_secs(31 * 86_400)));
    for secret in ["authority.key", "rack-3/own.key", "metadata/own.key"] {
        assert_eq!(mode(&folder.path().join(secret)), 0o600, "{secret}");
    }
    assert_eq!(mode(&folder.path().join("rack-3")), 0o700);
}

#[test]
fn nobody_of_another_authority_is_known() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [here, there] = folders.each_ref().map(|folder| Authority::create(folder.path()).unwrap());
    let results = shake(&issue(&there, RACK), &issue(&here, Party::MetadataServer));
    assert!(
        results
            .iter()
            .any(|said| { said.as_ref().is_err_and(|said| said.contains("another authority")) }),
        "{results:?}"
    );
}

#[test]
fn a_rack_can_not_pass_for_the_metadata_server() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    let [client, _] = shake(&issue(&authority, RACK), &issue(&authority, Party::Rack(RackId(4))));
    assert!(client.unwrap_err().contains("certificate of another party"));
}

#[test]
fn the_metadata_server_is_no_rack() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    let server = issue(&authority, Party::MetadataServer);
    let [_, said] = shake(&server, &server);
    assert!(said.unwrap_err().contains("certificate of another party"), "it is for servers only");
}

#[test]
fn credentials_of_somebody_else_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    let path = authority.issue(RACK, 30, false).unwrap();
    let error = Credentials::load_of(&path, Party::Rack(RackId(4))).unwrap_err().to_string();
    assert!(error.contains("credentials of rack-3, those of rack-4 are needed"), "{error}");
}

#[test]
fn a_folder_that_is_not_whole_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    let path = authority.issue(RACK, 30, false).unwrap();
    let expect = |part: &str| {
        let error = Credentials::load(&path).unwrap_err().to_string();
        assert!(error.contains(part), "{part} is not in: {error}");
    };
    let key = path.join("own.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    expect("can be read by others (mode 640): chmod 600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    Credentials::load(&path).unwrap();

    let others = authority.issue(Party::Operator, 30, false).unwrap();
    fs::copy(others.join("own.key"), &key).unwrap();
    expect("do not belong together");
    fs::write(&key, "no key").unwrap();
    expect("own.key is damaged");
    authority.issue(RACK, 30, true).unwrap();
    Credentials::load(&path).unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    Authority::create(elsewhere.path()).unwrap();
    fs::copy(elsewhere.path().join("authority.crt"), path.join("authority.crt")).unwrap();
    expect("was not signed by the authority.crt beside it");
    fs::copy(folder.path().join("authority.crt"), path.join("own.crt")).unwrap();
    expect("no certificate of rackpool");
    // A killed `rackpool credentials` leaves these files.
    fs::remove_file(path.join("own.crt")).unwrap();
    expect("can't read");
    expect("own.crt");
}

#[test]
fn credentials_are_refused_before_and_after_their_validity() {
    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(86_400);
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    let issued = SystemTime::now();
    let path = authority.issue_at(issued, RACK, 1, false).unwrap();
    Credentials::load(&path).unwrap();
    // They are dated back by an hour.
    for time in [issued - HOUR, issued + DAY - Duration::from_secs(1)] {
        Credentials::load_at(time, &path).unwrap();
    }
    for (time, expected) in [
        (issued - HOUR - Duration::from_secs(2), "is not valid before 0 days from now"),
        (issued + DAY + Duration::from_secs(2), "expired 0 days ago"),
        (issued + 12 * DAY, "expired 11 days ago"),
    ] {
        let error = Credentials::load_at(time, &path).unwrap_err();
        assert!(matches!(error, CredentialsError::Time { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn what_is_there_is_not_replaced_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    assert!(matches!(Authority::create(folder.path()), Err(CredentialsError::Exists { .. })));
    authority.issue(RACK, 30, false).unwrap();
    let error = authority.issue(RACK, 30, false).unwrap_err().to_string();
    assert!(error.contains("--renew"), "{error}");
}
