//! Machines that tests make up.

use rackpool_shm::host::{HostFiles, RdmaPort};

/// A computer with these files below `/sys` and `/proc`.
pub(crate) fn fixture(files: &[(String, &str)]) -> (tempfile::TempDir, HostFiles) {
    let folder = rackpool_testing::folder_of(files);
    let machine = HostFiles::at(folder.path());
    (folder, machine)
}

/// A port of an Ethernet card.
pub(crate) fn port(state: &str, gids: &[&str], node: Option<u32>) -> RdmaPort {
    RdmaPort {
        device: "mlx5_0".into(),
        port: 1,
        state: state.into(),
        rate: "100 Gb/sec".into(),
        link: "Ethernet".into(),
        gids_v2: gids.iter().map(|gid| (3, (*gid).to_owned())).collect(),
        node,
        is_software: false,
    }
}
