//! Small studies to their end. Nothing is said of times.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::Duration;

use rackpool_numa::{Experiment, Host, Kind, Pacing, Provider, Study, Workers};
use rackpool_shm::host::HostFiles;

fn quick(host: Host, provider: Provider) -> Study {
    Study { host, provider, pairs: 2, time: Duration::from_millis(20), ..Study::default() }
}

fn check(study: &Study, experiment: &Experiment) {
    let outcome = study.run(experiment).unwrap();
    for side in [outcome.local, outcome.remote] {
        assert!(side.operations > 0 && side.rate > 0.0, "{outcome:?}");
        assert!(side.p50_ns > 0.0 && side.p50_ns <= side.p99_ns, "{outcome:?}");
    }
    let ratio = outcome.ratio;
    assert!(ratio.low <= ratio.mean && ratio.mean <= ratio.high, "{outcome:?}");
    let may_be_predicted = (experiment.kind, experiment.pacing) == (Kind::Read, Pacing::Closed);
    let is_model = matches!(study.host, Host::Model { .. });
    assert!(outcome.predicted.is_none() || may_be_predicted, "{outcome:?}");
    assert!(outcome.predicted.is_some() || !(may_be_predicted && is_model), "{outcome:?}");
}

#[test]
fn the_model_runs_reads_and_writes_in_both_loops() {
    let study = quick(Host::Model { dilation: 20 }, Provider::Emulated);
    for kind in [Kind::Read, Kind::Write] {
        check(&study, &Experiment { kind, ..Experiment::default() });
        let workers = Workers { threads: 8, writes: 90 };
        let many = Experiment {
            kind,
            bytes: 8,
            queue_pairs: 8,
            pacing: Pacing::Open(16),
            workers,
            load_threads: 0,
        };
        check(&study, &many);
    }
}

/// The same node on both sides: placement, its proof, workers and load run on any machine.
#[test]
fn a_node_compared_with_itself_runs_over_the_emulated_fabric_and_tcp() {
    let nodes = HostFiles::here().nodes();
    let Some(node) = nodes.iter().find(|node| node.memory_bytes > 0 && !node.cpus.is_empty())
    else {
        return rackpool_testing::skipped("this kernel knows no NUMA nodes");
    };
    let host = Host::Real { card: node.id, other: node.id };
    for provider in [Provider::Emulated, Provider::Tcp] {
        let study = quick(host, provider);
        check(&study, &Experiment { queue_pairs: 2, ..Experiment::default() });
        let loaded = Experiment {
            kind: Kind::Write,
            pacing: Pacing::Open(4),
            workers: Workers { threads: 1, writes: 50 },
            load_threads: 1,
            ..Experiment::default()
        };
        check(&study, &loaded);
    }
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let study = quick(Host::Real { card: 99, other: 99 }, Provider::Emulated);
    let error = study.run(&Experiment::default()).unwrap_err();
    assert!(error.to_string().contains("NUMA node 99"), "{error}");
}
