//! Starting a TCP fabric with invalid options, and leaving the host without a key.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Tcp;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_fabric::{ErrorClass, Fabric, FabricError, FabricStartError};
use rackpool_model::{FabricKey, RackId};

fn start(change: impl FnOnce(&mut TcpOptions)) -> Result<TcpFabric, FabricStartError> {
    let mut options = Tcp::default().options(RackId(1), Arc::new(FileMemory::anonymous(4096)));
    change(&mut options);
    TcpFabric::new(options)
}

#[test]
fn it_says_where_it_is_and_who_may_connect() {
    let fabric = start(|_| ()).unwrap();
    let address = fabric.address();
    assert!(address.starts_with("tcp:127.0.0.1:") && !address.ends_with(":0"), "{address}");
    let description = fabric.description();
    let place = address.strip_prefix("tcp:").unwrap();
    assert!(description.starts_with("tcp: ") && description.contains(place), "{description}");
    assert!(description.contains("without a key"), "{description}");
    let keyed = start(|options| options.key = Some(FabricKey::new([7; 32])).into()).unwrap();
    assert!(keyed.description().contains("have the pool's key"), "{}", keyed.description());
    let six = start(|options| options.listen = "[::1]:0".parse().unwrap());
    // Not every host has IPv6.
    assert!(six.map_or(true, |fabric| fabric.address().starts_with("tcp:[::1]:")));
}

#[test]
fn without_a_key_nobody_else_is_let_in_and_nobody_else_called() {
    for address in ["192.0.2.1:7500", "[2001:db8::1]:7500"] {
        let error = start(|options| options.listen = address.parse().unwrap()).unwrap_err();
        assert!(matches!(error, FabricStartError::KeyNeeded { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(address) && text.contains("give the pool a key"), "{text}");
        let mut fabric = start(|_| ()).unwrap();
        let error = fabric.connect(&format!("tcp:{address}")).unwrap_err();
        assert!(matches!(error, FabricError::KeyNeeded { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Fatal);
        assert!(error.to_string().contains("pool's key"), "{error}");
    }
    // With a key, the address is tried; listening fails because this host does not have the
    // address.
    let error = start(|options| {
        options.key = Some(FabricKey::new([7; 32])).into();
        options.listen = "192.0.2.1:7500".parse().unwrap();
    });
    assert!(matches!(error, Err(FabricStartError::System { step: "listen", .. })), "{error:?}");
}

#[test]
fn options_that_make_no_sense_are_named() {
    type Change = Box<dyn FnOnce(&mut TcpOptions)>;
    let changes: [(&str, Change); 5] = [
        ("listen", Box::new(|options| options.listen = "0.0.0.0:7500".parse().unwrap())),
        ("listen", Box::new(|options| options.listen = "[::]:7500".parse().unwrap())),
        ("dead_after", Box::new(|options| options.dead_after = Duration::from_millis(999))),
        ("dead_after", Box::new(|options| options.dead_after = Duration::from_secs(601))),
        ("exports", Box::new(|options| options.exports.clear())),
    ];
    for (name, change) in changes {
        let error = start(change).unwrap_err();
        assert!(
            matches!(error, FabricStartError::Option { option, .. } if option == name),
            "{error}"
        );
    }
}

#[test]
fn a_port_in_use_is_an_error_and_a_port_left_is_free_again() {
    let fabric = start(|_| ()).unwrap();
    let listen = fabric.address().strip_prefix("tcp:").unwrap().parse().unwrap();
    let error = start(|options| options.listen = listen).unwrap_err();
    assert!(matches!(error, FabricStartError::System { step: "listen", .. }), "{error}");
    drop(fabric);
    assert!(start(|options| options.listen = listen).is_ok());
}
