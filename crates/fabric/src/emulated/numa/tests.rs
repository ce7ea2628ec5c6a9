//! The model against the published measurements, in virtual time: several connections post to one
//! card, each its next operation when an earlier one completes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::*;
use crate::conformance::memory::FileMapper;
use crate::emulated::card::Card;
use crate::emulated::model::ps_per_byte;
use crate::emulated::wire::Wire;
use crate::{RegionId, RemoteRegion, Transfer};

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

/// An experiment with 8 connections, as published.
#[derive(Clone, Copy)]
struct Experiment {
    kind: Kind,
    bytes: u32,
    connections: u64,
    model: NumaModel,
}

impl Experiment {
    fn new(kind: Kind, bytes: u32) -> Self {
        Self { kind, bytes, connections: 8, model: NumaModel::default() }
    }

    const fn with(mut self, is_remote: bool, writers: u32) -> Self {
        self.model.is_remote = is_remote;
        self.model.writers = writers;
        self
    }

    /// The mean latency in ns, undilated, and the rate in millions a second, with this many
    /// operations in flight on each connection.
    fn run(self, window: u64) -> (f64, f64) {
        const OPERATIONS: u64 = 4_000;
        let dilation = u64::from(self.model.dilation);
        let ps = ps_per_byte(LINK_GBPS).unwrap() * dilation;
        let create = |model| Card::create(&FileMapper, ps, model).unwrap();
        let (server, _own) = create(Some(self.model));
        let latency_ns = (BASE_READ_NS - READ.execution_ps / 1000) * dilation;
        let mut wires: Vec<Wire> = (0..self.connections)
            .map(|_| {
                let of_server = |fd: &OwnedFd| fd.try_clone().unwrap();
                let peer = Card::of_peer(&FileMapper, of_server(&server)).unwrap();
                let client = NumaModel { dilation: self.model.dilation, ..NumaModel::default() };
                Wire::new(latency_ns, Arc::new(create(Some(client)).1), peer)
            })
            .collect();
        let operation = |connection: u64| {
            let transfer = Transfer {
                local: RegionId(0),
                local_offset: 0,
                remote: RemoteRegion::FRAMES,
                remote_offset: connection * u64::from(self.bytes),
                len: self.bytes,
            };
            match self.kind {
                Kind::Read => Operation::Read(transfer),
                Kind::Write => Operation::Write(transfer),
            }
        };
        let mut due: BinaryHeap<Reverse<(u64, u64, u64)>> = (0..self.connections * window)
            .map(|slot| Reverse((0, slot % self.connections, 0)))
            .collect();
        let (mut total_ns, mut now_ns) = (0, 0);
        for done in 0..OPERATIONS + self.connections * window {
            let Reverse((at_ns, connection, took_ns)) = due.pop().unwrap();
            (total_ns, now_ns) = (total_ns + took_ns, at_ns);
            let wire = &mut wires[usize::try_from(connection).unwrap()];
            let next_ns = wire.schedule_operation(at_ns, &operation(connection));
            assert!(next_ns > at_ns, "operation {done}");
            due.push(Reverse((next_ns, connection, next_ns - at_ns)));
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (operations, latency, time) = (
            OPERATIONS as f64,
            total_ns as f64 / dilation as f64 / OPERATIONS as f64,
            now_ns as f64 / dilation as f64,
        );
        (latency, operations / time * 1000.0)
    }

    /// The latency in ns of a closed loop on one connection.
    fn latency_ns(mut self) -> f64 {
        self.connections = 1;
        self.run(1).0
    }

    /// Millions of operations a second in an open loop.
    fn rate(self) -> f64 {
        self.run(16).1
    }

    /// The rate with memory of the other node, relative to memory of the card's node.
    fn remote_to_local(self) -> f64 {
        let writers = self.model.writers;
        self.with(true, writers).rate() / self.with(false, writers).rate()
    }
}

fn assert_within(value: f64, published: f64, percent: f64, what: &str) {
    let off = (value / published - 1.0).abs() * 100.0;
    assert!(off <= percent, "{what}: {value:.3} instead of {published} ({off:.1} %)");
}

#[test]
fn a_read_of_the_other_node_takes_3_65_percent_longer_and_a_write_does_not() {
    let ratio = |kind| {
        let experiment = Experiment::new(kind, 64);
        experiment.with(true, 0).latency_ns() / experiment.latency_ns()
    };
    let read = (ratio(Kind::Read) - 1.0) * 100.0;
    assert!((read - 3.65).abs() <= 0.3, "{read:.2} %");
    assert!((ratio(Kind::Write) - 1.0).abs() < 1e-9);
    let local_ns = Experiment::new(Kind::Read, 64).latency_ns();
    assert_within(local_ns, 2300.0, 1.0, "a read of the card's node, ns");
}

#[test]
fn reads_up_to_the_mtu_are_slower_on_the_other_node_and_fragmented_ones_are_not() {
    for bytes in [8, 16, 32, 64, 128, 256] {
        let percent = (Experiment::new(Kind::Read, bytes).remote_to_local() - 1.0) * 100.0;
        assert!((-7.0..=-5.0).contains(&percent), "{bytes} B: {percent:.2} %");
    }
    for bytes in [512, 1024, 2048, 4096] {
        let percent = (Experiment::new(Kind::Read, bytes).remote_to_local() - 1.0) * 100.0;
        assert!(percent.abs() < 0.5, "{bytes} B: {percent:.2} %");
    }
    for bytes in [8, 64, 256, 512, 4096] {
        let ratio = Experiment::new(Kind::Write, bytes).remote_to_local();
        assert!((ratio - 1.0).abs() < 1e-3, "{bytes} B written: {ratio}");
    }
}

#[test]
fn up_to_1024_bytes_reads_keep_80_percent_of_their_rate_and_writes_70() {
    let kept = |kind| Experiment::new(kind, 1024).rate() / Experiment::new(kind, 8).rate();
    let (reads, writes) = (kept(Kind::Read), kept(Kind::Write));
    assert!(reads > 0.8 && (0.7..0.8).contains(&writes), "{reads:.3}, {writes:.3}");
    let [reads, writes] = [Kind::Read, Kind::Write].map(|kind| Experiment::new(kind, 4096).rate());
    assert_within(reads, writes, 2.0, "reads and writes of 4096 B");
}

/// The contended times are calibrated with 8 writers; the other values test the model.
#[test]
fn small_operations_on_lines_that_local_threads_write_are_slower_on_the_cards_node() {
    let published = [
        (0, [6.05, 6.05, 5.91, 5.51]),
        (4, [5.48, 6.37, 5.07, 5.26]),
        (8, [3.41, 6.05, 3.53, 4.68]),
        (16, [3.47, 6.05, 3.54, 4.47]),
        (48, [3.48, 6.05, 3.47, 4.65]),
    ];
    for (writers, rates) in published {
        let of = |kind, is_remote| Experiment::new(kind, 8).with(is_remote, writers).rate();
        let modelled = [
            of(Kind::Write, false),
            of(Kind::Write, true),
            of(Kind::Read, false),
            of(Kind::Read, true),
        ];
        for (rate, published) in modelled.into_iter().zip(rates) {
            assert_within(rate, published, 10.0, &format!("{writers} writers"));
        }
        let ratio = Experiment::new(Kind::Write, 8).with(false, writers).remote_to_local();
        if writers >= 8 {
            assert!((1.7..=1.8).contains(&ratio), "{writers} writers: {ratio:.3}");
        }
    }
    let apart = Experiment::new(Kind::Write, 64).with(false, 8).remote_to_local();
    assert!((apart - 1.0).abs() < 0.01, "a line for each connection: {apart:.3}");
}

#[test]
fn dilated_time_changes_no_result() {
    for (kind, writers) in [(Kind::Read, 0), (Kind::Write, 8)] {
        let mut experiment = Experiment::new(kind, 8).with(true, writers);
        let real = experiment.rate();
        experiment.model.dilation = 20;
        assert_within(experiment.rate(), real, 0.5, "dilated 20 times");
    }
}

#[test]
fn the_model_of_a_peer_is_checked() {
    let model = NumaModel { is_remote: true, writers: 8, dilation: 20 };
    assert_eq!(NumaModel::from_words(model.to_words()), Ok(Some(model)));
    assert_eq!(NumaModel::from_words([0, 7, 7]), Ok(None));
    for words in [[1001, 0, 0], [1, 2, 0], [1, 0, 1 << 32], [u64::MAX, 0, 0]] {
        assert!(NumaModel::from_words(words).is_err(), "{words:?}");
    }
    for dilation in [0, 1001] {
        assert!(NumaModel { dilation, ..model }.check().is_err());
    }
}

#[test]
fn an_operation_touches_its_lines_and_a_fragmented_one_none() {
    let lines = |remote_offset, len| {
        let transfer = Transfer {
            local: RegionId(0),
            local_offset: 0,
            remote: RemoteRegion::FRAMES,
            remote_offset,
            len,
        };
        lines_of(&Operation::Read(transfer)).collect::<Vec<_>>()
    };
    assert_eq!(lines(56, 8), [0]);
    assert_eq!(lines(60, 8), [0, 1]);
    assert_eq!(lines(255 * 64, 128), [255, 0]);
    assert_eq!(lines(0, 257), []);
    assert_eq!(lines(u64::MAX, 1).len(), 1);
}
