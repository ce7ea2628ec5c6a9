use std::path::Path;

use super::{HostFiles, names_in, text};

/// A port of an RDMA card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// The card's name, like `mlx5_0`.
    pub device: String,
    /// The port's number on the card, from 1.
    pub port: u32,
    /// State as the kernel writes it: `ACTIVE`, `DOWN`, …
    pub state: String,
    /// Rate as the kernel writes it, like `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// `Ethernet` (`RoCE`) or `InfiniBand`.
    pub link: String,
    /// Index and value of each `RoCE` version 2 address.
    pub gids_v2: Vec<(u32, String)>,
    /// The NUMA node that the card is attached to, if the kernel reports it.
    pub node: Option<u32>,
    /// True if the kernel emulates the card on a network interface (soft-`RoCE`).
    pub is_software: bool,
}

impl RdmaPort {
    /// Returns true if the port is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

impl HostFiles {
    /// The ports of all RDMA cards, in the order of the cards' names.
    #[must_use]
    pub fn rdma_ports(&self) -> Vec<RdmaPort> {
        let devices = names_in(&self.sys("class/infiniband"));
        devices.iter().flat_map(|device| self.ports_of(device)).collect()
    }

    fn ports_of(&self, device: &str) -> Vec<RdmaPort> {
        let base = format!("class/infiniband/{device}");
        let parent = self.sys_text(format!("{base}/parent"));
        let node = self.node_of(&format!("{base}/device")).or_else(|| {
            // Soft-RoCE: the node of the network interface.
            self.node_of(&format!("class/net/{}/device", parent.as_deref()?))
        });
        // Only soft-RoCE names its network interface; other software cards have no device.
        let is_software = parent.is_some() || !self.sys(format!("{base}/device")).exists();
        let port = |name: &String| {
            let number: u32 = name.parse().ok()?;
            let file = |file: &str| {
                self.sys_text(format!("{base}/ports/{name}/{file}")).unwrap_or_default()
            };
            // The kernel writes "4: ACTIVE".
            let state = file("state");
            let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
            Some(RdmaPort {
                device: device.to_owned(),
                port: number,
                state: state.to_owned(),
                rate: file("rate"),
                link: file("link_layer"),
                gids_v2: self.gids_v2(&format!("{base}/ports/{name}")),
                node,
                is_software,
            })
        };
        names_in(&self.sys(format!("{base}/ports"))).iter().filter_map(port).collect()
    }

    /// The NUMA node of a device, or else of the nearest device above it that has one: a virtio
    /// interface has none, the PCI device that carries it does.
    fn node_of(&self, device: &str) -> Option<u32> {
        let top = std::fs::canonicalize(self.sys("")).ok()?;
        let device = std::fs::canonicalize(self.sys(device)).ok()?;
        // The kernel writes -1 if it does not know the node.
        let node = |folder: &Path| text(&folder.join("numa_node"))?.parse().ok();
        device.ancestors().take_while(|folder| folder.starts_with(&top)).find_map(node)
    }

    fn gids_v2(&self, port: &str) -> Vec<(u32, String)> {
        let mut indices: Vec<u32> = names_in(&self.sys(format!("{port}/gids")))
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        indices.sort_unstable();
        let address = |index: u32| {
            // Unused entries cannot be read.
            let kind = self.sys_text(format!("{port}/gid_attrs/types/{index}"))?;
            let gid = self.sys_text(format!("{port}/gids/{index}"))?;
            kind.ends_with("v2").then_some((index, gid))
        };
        indices.into_iter().filter_map(address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;

    #[test]
    fn the_node_of_the_first_active_card_is_found() {
        const BASE: &str = "sys/class/infiniband";
        let file = |path: &str| format!("{BASE}/{path}");
        let files = [
            (file("mlx5_0/device/numa_node"), "0\n"),
            (file("mlx5_0/ports/1/state"), "1: DOWN\n"),
            (file("mlx5_1/device/numa_node"), "1\n"),
            (file("mlx5_1/ports/1/state"), "4: ACTIVE\n"),
            (file("mlx5_1/ports/1/rate"), "100 Gb/sec (4X EDR)\n"),
            (file("mlx5_1/ports/1/link_layer"), "Ethernet\n"),
            (file("mlx5_1/ports/1/gids/0"), "fe80::1\n"),
            (file("mlx5_1/ports/1/gids/3"), "::ffff:10.0.0.1\n"),
            (file("mlx5_1/ports/1/gids/9"), "::\n"),
            (file("mlx5_1/ports/1/gid_attrs/types/0"), "IB/RoCE v1\n"),
            (file("mlx5_1/ports/1/gid_attrs/types/3"), "RoCE v2\n"),
            (file("rxe0/ports/1/state"), "4: ACTIVE\n"),
            (file("rxe1/ports/1/state"), "4: ACTIVE\n"),
            (file("rxe1/parent"), "eth0\n"),
            (file("rxe1/device/numa_node"), "0\n"),
        ];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_folder, machine) = fixture(&files);
        let ports = machine.rdma_ports();
        assert_eq!(ports.len(), 4);
        let software: Vec<bool> = ports.iter().map(|port| port.is_software).collect();
        assert_eq!(software, [false, false, true, true]);
        assert_eq!(ports[1].gids_v2, [(3, "::ffff:10.0.0.1".to_owned())]);
        assert_eq!(ports[2].node, None);
        assert_eq!(machine.card_node(None, None), Some(1));
    }

    #[test]
    fn soft_roce_has_the_node_of_its_interface() {
        let pci = "sys/devices/pci0000:20/0000:20:00.0/0000:21:00.0";
        let node = format!("{pci}/numa_node");
        let (folder, machine) = fixture(&[
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/rxe0/parent", "eth0\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
            (&node, "1\n"),
        ]);
        assert_eq!(machine.card_node(None, None), None);
        let virtio = folder.path().join(pci).join("virtio2");
        std::fs::create_dir_all(&virtio).unwrap();
        let link = folder.path().join("sys/class/net/eth0/device");
        std::os::unix::fs::symlink(&virtio, link).unwrap();
        assert_eq!(machine.card_node(None, None), Some(1));
        std::fs::write(folder.path().join(&node), "-1\n").unwrap();
        assert_eq!(machine.card_node(None, None), None, "the kernel does not know it");
    }

    #[test]
    fn a_machine_without_cards_has_none() {
        let (_folder, machine) = fixture(&[]);
        assert!(machine.rdma_ports().is_empty());
        assert_eq!(machine.card_node(None, None), None);
    }
}
