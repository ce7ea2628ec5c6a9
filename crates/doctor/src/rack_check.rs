//! Warnings about the racks that run: where their memory lies, and what their card has to do.
//!
//! docs/design/placement.md has the rules R1 to R5 and their source.

use rackpool_model::ByteSize;
use rackpool_shm::host::LOADED;

use super::advice::Warning;
use super::facts::Facts;
use super::report::{RackReport, RackState};

/// Queue pairs from which on the cards that were measured answer late (R5).
const MOST_QUEUE_PAIRS: usize = 16;
/// Memory from which on pages of 4 KiB are warned of, in bytes. A card caches the translations of
/// some thousand pages (R5); the limit is this project's choice.
const LARGE_REGION: u64 = 256 << 20;
const SMALL_PAGE: u64 = 4096;

/// The warnings about all racks whose daemons answer.
pub(crate) fn warnings(facts: &Facts, racks: &[RackReport]) -> Vec<Warning> {
    let states = racks.iter().filter_map(|rack| Some((rack.rack, rack.state.as_ref().ok()?)));
    states
        .flat_map(|(rack, state)| {
            let found = [
                frames(facts, state),
                queue_pairs(state),
                small_pages(state),
                in_flight(facts, state),
            ];
            found
                .into_iter()
                .flatten()
                .map(move |(what, fix)| Warning { what: format!("rack {rack}: {what}"), fix })
        })
        .collect()
}

/// What is wrong, and what mends it.
type Finding = Option<(String, String)>;

fn is_rdma(state: &RackState) -> bool {
    state.fabric.starts_with("verbs")
}

/// The frames lie where the rules would not place them now (R1, R2).
fn frames(facts: &Facts, state: &RackState) -> Finding {
    let card = facts.placing(None).card?;
    let (node, _) = state.nodes.iter().max_by_key(|(_, pages)| pages)?;
    let chosen = facts.placing(None).frames(|| facts.node_load.clone()).node?;
    let busy = |node: u32| facts.node_load.get(&node).copied().unwrap_or(0.0);
    if *node == chosen || !facts.memory_nodes().any(|found| found.id == *node) {
        return None;
    }
    // A memory node without processors stands for CXL memory: it was chosen for its kind.
    if facts.nodes.iter().any(|found| found.id == *node && found.is_memory_only()) {
        return None;
    }
    let what = if busy(*node) >= LOADED {
        format!(
            "its frames are on NUMA node {node}, whose processors are {:.0} % busy: programs and the card contend for its memory",
            busy(*node) * 100.0
        )
    } else {
        format!("its frames are on NUMA node {node}, the RDMA card is on node {card}")
    };
    let fix = format!(
        "start it with new memory and --frames-node {chosen}: pages that exist stay where they are"
    );
    Some((what, fix))
}

fn queue_pairs(state: &RackState) -> Finding {
    let count = state.other_racks;
    (is_rdma(state) && count > MOST_QUEUE_PAIRS).then(|| {
        (
            format!(
                "its card serves {count} queue pairs, one for each other rack: older cards answer late from {} on",
                MOST_QUEUE_PAIRS + 1
            ),
            "use fewer, larger racks; `rackpool numa study --figure 3a` shows what this card does"
                .into(),
        )
    })
}

fn small_pages(state: &RackState) -> Finding {
    let is_large = state.memory_bytes >= LARGE_REGION && state.kernel_page_bytes == SMALL_PAGE;
    (is_rdma(state) && is_large).then(|| {
        (
            format!(
                "{} of memory in pages of 4 KiB: the card reads their translations from memory",
                ByteSize(state.memory_bytes)
            ),
            "--memory-kind huge:2M, or huge pages for tmpfs (mount -o remount,huge=advise)".into(),
        )
    })
}

/// More may be in flight to the rack than the share of the cache for devices holds.
fn in_flight(facts: &Facts, state: &RackState) -> Finding {
    let share = facts.device_share;
    let limit = state.in_flight_limit;
    (share > 0 && is_rdma(state) && limit > share).then(|| {
        (
            format!(
                "{} may be in flight to it (most so far {}), devices have {} of the cache: what exceeds this is evicted before programs read it",
                ByteSize(limit),
                ByteSize(state.in_flight_peak),
                ByteSize(share)
            ),
            "give devices more of the cache: `rackpool dca set --ways N`, or use fewer racks"
                .into(),
        )
    })
}

#[cfg(test)]
mod tests {
    use rackpool_shm::host::{HostFiles, NumaNode};

    use super::super::fixture::port;
    use super::*;

    /// Two nodes with processors, and one of memory alone; the card is on node 0.
    fn facts() -> Facts {
        let node = |id, cpus: &[u32]| NumaNode {
            id,
            cpus: cpus.to_vec(),
            memory_bytes: 1 << 30,
            ..NumaNode::default()
        };
        let mut facts = Facts::gather(&HostFiles::at("/nonexistent"));
        facts.nodes = vec![node(0, &[0]), node(1, &[1]), node(2, &[])];
        facts.rdma = vec![port("ACTIVE", &["::1"], Some(0))];
        facts.device_share = 4 << 20;
        facts
    }

    fn state() -> RackState {
        RackState {
            fabric: "verbs: mlx5_0".into(),
            memory_bytes: 1 << 30,
            kernel_page_bytes: 2 << 20,
            nodes: vec![(0, 60), (1, 4)],
            other_racks: 3,
            in_flight_limit: 3 << 20,
            in_flight_peak: 1 << 20,
            ..RackState::default()
        }
    }

    /// The warnings about a rack in this state.
    fn warned(facts: &Facts, change: impl FnOnce(&mut RackState)) -> Vec<Warning> {
        let mut state = state();
        change(&mut state);
        warnings(facts, &[RackReport { rack: 7, siblings: Vec::new(), state: Ok(state) }])
    }

    fn assert_warned(facts: &Facts, of: &str, change: impl FnOnce(&mut RackState)) {
        let found = warned(facts, change);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.starts_with("rack 7: ") && found[0].what.contains(of), "{found:?}");
        assert!(!found[0].fix.is_empty());
    }

    #[test]
    fn a_rack_as_the_rules_want_it_has_no_warning() {
        assert_eq!(warned(&facts(), |_| {}), []);
        let silent = RackReport { rack: 1, siblings: Vec::new(), state: Err("gone".into()) };
        assert_eq!(warnings(&facts(), &[silent]), []);
    }

    #[test]
    fn frames_away_from_the_card_are_named_unless_its_node_is_busy() {
        let away = |state: &mut RackState| state.nodes = vec![(0, 1), (1, 63)];
        let mut facts = facts();
        assert_warned(&facts, "on NUMA node 1, the RDMA card is on node 0", away);
        facts.node_load = [(0, 0.9), (1, 0.1)].into();
        assert_eq!(warned(&facts, away), []);
        assert_warned(&facts, "node 0, whose processors are 90 % busy", |_| {});
        facts.node_load = [(0, 0.9), (1, 0.9)].into();
        assert_eq!(warned(&facts, |_| {}), [], "no node is better");
    }

    #[test]
    fn memory_without_processors_is_where_it_should_be() {
        assert_eq!(warned(&facts(), |state| state.nodes = vec![(2, 64)]), []);
        assert_eq!(warned(&facts(), |state| state.nodes.clear()), [], "unknown");
        let mut facts = facts();
        facts.rdma[0].node = None;
        assert_eq!(warned(&facts, |state| state.nodes = vec![(1, 64)]), []);
    }

    #[test]
    fn many_queue_pairs_small_pages_and_many_bytes_are_named_with_rdma() {
        let facts = facts();
        assert_eq!(warned(&facts, |state| state.other_racks = 16), []);
        let many = |state: &mut RackState| state.other_racks = 17;
        assert_warned(&facts, "17 queue pairs", many);
        let small = |state: &mut RackState| state.kernel_page_bytes = 4096;
        assert_warned(&facts, "1 GiB of memory in pages of 4 KiB", small);
        let beyond = |state: &mut RackState| state.in_flight_limit = 5 << 20;
        assert_warned(&facts, "5 MiB may be in flight to it (most so far 1 MiB)", beyond);
        let small_rack = |state: &mut RackState| {
            (state.memory_bytes, state.kernel_page_bytes) = (64 << 20, 4096);
        };
        assert_eq!(warned(&facts, small_rack), []);
        let over_tcp = |state: &mut RackState| {
            many(state);
            small(state);
            beyond(state);
            state.fabric = "tcp: 127.0.0.1".into();
        };
        assert_eq!(warned(&facts, over_tcp), []);
    }
}
