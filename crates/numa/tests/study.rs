//! Tiny studies over real fabrics. Nothing here asserts a time.

use rackpool_model::FabricKind;
use rackpool_numa::{
    ClientPlacement, Configuration, Grid, Length, Load, LoopKind, Model, NodeChoice, Outcome, Side,
    StudyError, StudyNode, StudyOptions, Topology, Workers, Workload, study,
};
use rackpool_shm::host::HostFiles;

const OPERATIONS: u64 = 50;

fn options(fabric: FabricKind) -> StudyOptions {
    StudyOptions {
        fabric,
        rdma_device: None,
        topology: None,
        model: None,
        length: Length::Operations(OPERATIONS),
        pairs: 2,
        negligible: 0.01,
        client_threads: 1,
        window: 4,
        client: ClientPlacement::on(NodeChoice::Any),
    }
}

fn configuration(workload: Workload, loop_kind: LoopKind) -> Configuration {
    let load = Load { threads: 0, node: NodeChoice::Any, buffer_bytes: 0, write_percent: 50 };
    let bytes = if workload == Workload::KeyValue { 67 } else { 8 };
    let workers = Workers { threads: 0, write_percent: 90 };
    Configuration { workload, bytes, queue_pairs: 3, loop_kind, load, workers }
}

/// Checks that each measurement of each placement recorded every operation.
fn require_all_counted(outcome: &Outcome, pairs: usize) {
    for placement in &outcome.placements {
        assert_eq!(placement.measurements.len(), pairs);
        for measurement in &placement.measurements {
            assert_eq!(measurement.operations, OPERATIONS * 3);
            assert!(measurement.per_second > 0.0);
        }
    }
    let compared = outcome.placements.iter().map(|one| one.comparison.is_some());
    assert!(compared.enumerate().all(|(at, is_compared)| is_compared == (at > 0)));
}

#[test]
fn a_study_of_one_sided_operations_counts_them_all() {
    for fabric in [FabricKind::Emulated, FabricKind::Tcp] {
        for workload in [Workload::Read, Workload::Write] {
            for loop_kind in [LoopKind::Closed, LoopKind::Open] {
                let configuration = configuration(workload, loop_kind);
                let mut order = Vec::new();
                let measured = |placement: rackpool_numa::Placement, _: &_| {
                    order.push(placement.server);
                };
                let outcome = study(&options(fabric), &configuration, measured).unwrap();
                let is_closed = loop_kind == LoopKind::Closed;
                require_all_counted(&outcome, 2);
                assert_eq!(order, [Side::Local, Side::Remote, Side::Remote, Side::Local]);
                let measured = &outcome.placements[0].measurements[0];
                assert_eq!(measured.latency.is_some(), is_closed);
            }
        }
    }
}

#[test]
fn several_threads_of_the_client_share_the_connections() {
    let options = StudyOptions { client_threads: 2, ..options(FabricKind::Emulated) };
    let outcome =
        study(&options, &configuration(Workload::Read, LoopKind::Closed), |_, _| {}).unwrap();
    require_all_counted(&outcome, 2);
}

#[test]
fn the_key_value_workload_returns_what_was_stored() {
    // Each client compares every value with the one that it stored last.
    for fabric in [FabricKind::Emulated, FabricKind::Tcp] {
        let configuration = configuration(Workload::KeyValue, LoopKind::Closed);
        let outcome = study(&options(fabric), &configuration, |_, _| {}).unwrap();
        assert_eq!(outcome.placements.len(), 3);
        require_all_counted(&outcome, 2);
    }
}

#[test]
fn a_modelled_study_runs_without_a_second_node() {
    for workload in [Workload::Read, Workload::KeyValue] {
        let model = Some(Model { dilation: 10 });
        let options = StudyOptions { model, ..options(FabricKind::Emulated) };
        let mut configuration = configuration(workload, LoopKind::Closed);
        if workload == Workload::KeyValue {
            configuration.load = Load { threads: 4, buffer_bytes: 1 << 20, ..configuration.load };
        } else {
            configuration.workers.threads = 48;
        }
        require_all_counted(&study(&options, &configuration, |_, _| {}).unwrap(), 2);
    }
}

#[test]
fn placed_memory_is_proved_to_lie_on_its_node() {
    let Some(node) = HostFiles::here().nodes().into_iter().find(|node| !node.cpus.is_empty())
    else {
        return rackpool_testing::skipped("this kernel knows no NUMA nodes");
    };
    // Both sides are the same node: on a machine with one, that is all that can be placed.
    let node = StudyNode { id: node.id, cpus: node.cpus };
    let mut configuration = configuration(Workload::Read, LoopKind::Open);
    configuration.load =
        Load { threads: 1, node: NodeChoice::Remote, buffer_bytes: 1 << 16, write_percent: 50 };
    configuration.workers.threads = 1;
    let placed = |remote: StudyNode| StudyOptions {
        topology: Some(Topology { local: node.clone(), remote }),
        client: ClientPlacement { threads: NodeChoice::Local, memory: NodeChoice::Remote },
        ..options(FabricKind::Emulated)
    };
    let outcome = study(&placed(node.clone()), &configuration, |_, _| {}).unwrap();
    require_all_counted(&outcome, 2);
    // Memory on a node that is not there is refused, not placed elsewhere.
    let absent = StudyNode { id: 1023, cpus: node.cpus.clone() };
    let refused = study(&placed(absent), &configuration, |_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("NUMA node"), "{refused}");
}

#[test]
fn combinations_that_mean_nothing_are_refused() {
    let refused = |options: StudyOptions, configuration: Configuration| {
        let refused = study(&options, &configuration, |_, _| {}).unwrap_err();
        assert!(matches!(refused, StudyError::Option(_) | StudyError::Node { .. }), "{refused:?}");
        refused.to_string()
    };
    let read = configuration(Workload::Read, LoopKind::Closed);
    let emulated = || options(FabricKind::Emulated);
    let model = Some(Model { dilation: 20 });
    let tcp = StudyOptions { model, ..options(FabricKind::Tcp) };
    assert!(refused(tcp, read).contains("only the emulated fabric"));
    let mut loaded = read;
    loaded.load.threads = 1;
    loaded.load.buffer_bytes = 1 << 20;
    assert!(refused(StudyOptions { model, ..emulated() }, loaded).contains("no effect of load"));
    assert!(refused(StudyOptions { pairs: 1, ..emulated() }, read).contains("pairs"));
    assert!(refused(StudyOptions { window: 0, ..emulated() }, read).contains("window"));
    let length = Length::Seconds(0.0);
    assert!(refused(StudyOptions { length, ..emulated() }, read).contains("length"));
    let without_processors = Topology {
        local: StudyNode { id: 0, cpus: vec![0] },
        remote: StudyNode { id: 1, cpus: Vec::new() },
    };
    let topology = Some(without_processors);
    let key_value = configuration(Workload::KeyValue, LoopKind::Closed);
    assert!(refused(StudyOptions { topology, ..emulated() }, key_value).contains("no processors"));
}

#[test]
fn the_figures_lists_are_read() {
    let grid: Grid = rackpool_numa::Figure::ThroughputByWorkers.grid(1);
    let workers: Vec<u32> =
        grid.configurations().unwrap().iter().map(|one| one.workers.threads).collect();
    assert_eq!(workers, [0, 4, 8, 16, 48, 0, 4, 8, 16, 48]);
}
