//! Starting an emulated fabric at an occupied path, or with invalid options.

mod common;

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use common::Emulated;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, NumaModel};
use rackpool_fabric::{Fabric, FabricStartError};
use rackpool_model::RackId;

const RACK: RackId = RackId(1);

fn start(
    test: &Emulated,
    change: impl FnOnce(&mut EmulatedOptions),
) -> Result<(), FabricStartError> {
    let mut options = test.options(RACK, &FileMemory::anonymous(4096));
    change(&mut options);
    let fabric = EmulatedFabric::new(options)?;
    assert!(fabric.address().starts_with("emulated:/"));
    assert!(fabric.description().contains("2µs") && fabric.description().contains("100 Gbit/s"));
    Ok(())
}

#[test]
fn a_stale_socket_is_replaced_and_the_own_removed() {
    let test = Emulated::new();
    drop(UnixListener::bind(test.socket(RACK)).unwrap());
    assert!(test.socket(RACK).exists());
    start(&test, |_| ()).unwrap();
    assert!(!test.socket(RACK).exists());
}

#[test]
fn anything_but_a_socket_stays() {
    let test = Emulated::new();
    fs::write(test.socket(RACK), b"precious").unwrap();
    let error = start(&test, |_| ()).unwrap_err();
    assert!(matches!(error, FabricStartError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read(test.socket(RACK)).unwrap(), b"precious");

    let link = test.directory.path().join("link");
    std::os::unix::fs::symlink(test.socket(RACK), &link).unwrap();
    let error = start(&test, |options| options.listen = link).unwrap_err();
    assert!(matches!(error, FabricStartError::NotASocket { .. }), "{error}");
}

#[test]
fn a_successors_socket_is_not_removed() {
    let test = Emulated::new();
    let fabric = EmulatedFabric::new(test.options(RACK, &FileMemory::anonymous(4096))).unwrap();
    let successor = EmulatedFabric::new(test.options(RACK, &FileMemory::anonymous(4096))).unwrap();
    drop(fabric);
    assert!(test.socket(RACK).exists());
    drop(successor);
    assert!(!test.socket(RACK).exists());
}

#[test]
fn options_that_make_no_sense_are_named() {
    let test = Emulated::new();
    let long = test.directory.path().join("x".repeat(108));
    type Change = Box<dyn FnOnce(&mut EmulatedOptions)>;
    let changes: [(&str, Change); 5] = [
        ("latency", Box::new(|options| options.latency = Duration::from_secs(11))),
        ("bandwidth_gbps", Box::new(|options| options.bandwidth_gbps = -1.0)),
        ("exports", Box::new(|options| options.exports.clear())),
        ("listen", Box::new(|options| options.listen = long)),
        (
            "numa.dilation",
            Box::new(|options| {
                options.numa = Some(NumaModel { dilation: 0, ..NumaModel::default() });
            }),
        ),
    ];
    for (name, change) in changes {
        let error = start(&test, change).unwrap_err();
        assert!(
            matches!(error, FabricStartError::Option { option, .. } if option == name),
            "{error}"
        );
    }
    let error = start(&test, |options| options.listen = "/nowhere/at/all".into()).unwrap_err();
    assert!(matches!(error, FabricStartError::System { .. }), "{error}");
}
