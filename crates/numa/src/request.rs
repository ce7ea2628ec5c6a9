//! A model of a key-value server's request over one-sided RDMA: arithmetic, nothing runs.
//!
//! The server (67 B pairs, 8 connections, one thread) is that of Nelson and Palmieri, SRDS 2020,
//! figure 6. A request takes a base time; each access that crosses the sockets takes the difference
//! between the other node's memory and the own cache more; programs that load the server's node
//! lengthen it by a fixed time.

use rackpool_fabric::emulated::numa::{L3_NS, REMOTE_MEMORY_NS};

/// Time of a request in ns: server, clients and cards on one node each, no load. Calibrated: 626
/// thousand requests a second.
const BASE_NS: f64 = 1e6 / 626.0;
/// Accesses of a request that cross the sockets if the server is not on the card's node.
/// Calibrated: 535 thousand requests a second.
const SERVER_CROSSINGS: f64 = (1e6 / 535.0 - BASE_NS) / CROSSING_NS;
/// Accesses that cross if the client is not on its card's node: its buffer is read or written once.
const CLIENT_CROSSINGS: f64 = 1.0;
/// Time that programs on the server's node add to a request. Calibrated: 334 thousand requests a
/// second.
const LOAD_NS: f64 = 1e6 / 334.0 - BASE_NS;
#[expect(clippy::cast_precision_loss, reason = "a small number")]
const CROSSING_NS: f64 = (REMOTE_MEMORY_NS - L3_NS) as f64;

/// A node of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// That of the card.
    Card,
    /// Another one.
    Other,
}

/// Where server and clients are, and which node of the server's host other programs load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The server's thread and memory.
    pub server: Node,
    /// The clients' threads and memory.
    pub clients: Node,
    /// Load of other programs.
    pub load: Option<Node>,
}

impl Setting {
    /// Thousands of requests a second.
    #[must_use]
    pub fn rate(self) -> f64 {
        let crossings = |node: Node, count: f64| match node {
            Node::Card => 0.0,
            Node::Other => count * CROSSING_NS,
        };
        let load = if self.load == Some(self.server) { LOAD_NS } else { 0.0 };
        1e6 / (BASE_NS
            + crossings(self.server, SERVER_CROSSINGS)
            + crossings(self.clients, CLIENT_CROSSINGS)
            + load)
    }

    /// The settings of figure 6, in the order of [`FIGURE_6`](crate::published::FIGURE_6).
    #[must_use]
    pub fn of_figure_6() -> [[Self; 3]; 3] {
        [None, Some(Node::Card), Some(Node::Other)].map(|load| {
            [(Node::Card, Node::Card), (Node::Other, Node::Card), (Node::Other, Node::Other)]
                .map(|(server, clients)| Self { server, clients, load })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::FIGURE_6;

    /// Three of the nine values calibrate the model, the others test it.
    #[test]
    fn the_published_rates_are_met_within_10_percent() {
        for (settings, rates) in Setting::of_figure_6().into_iter().zip(FIGURE_6) {
            for (setting, published) in settings.into_iter().zip(rates) {
                let off = (setting.rate() / published - 1.0) * 100.0;
                assert!(off.abs() < 10.0, "{setting:?}: {off:.1} % off");
            }
        }
    }

    #[test]
    fn placement_costs_10_to_20_percent_and_load_on_the_servers_node_40_to_50() {
        let [quiet, on_card, _] = Setting::of_figure_6();
        let lost = |from: Setting, to: Setting| (1.0 - to.rate() / from.rate()) * 100.0;
        for other in &quiet[1..] {
            assert!((10.0..=20.0).contains(&lost(quiet[0], *other)));
        }
        assert!((40.0..=50.0).contains(&lost(quiet[0], on_card[0])));
        assert!(lost(quiet[1], on_card[1]).abs() < 1e-9, "load elsewhere costs nothing");
    }
}
