//! One card with its forwarding cores: rings, buffers, and what they counted.

use std::collections::VecDeque;

use crate::assumptions::{ENOUGH_TX_QUEUES, FEW_TX_QUEUES_GBPS, LLC_NS, WIRE_OVERHEAD_BYTES};
use crate::cache::index;
use crate::forwarder::Forwarder;
use crate::machine::LINE_BYTES;
use crate::outcome::ForwarderOutcome;
use crate::rng::Rng;
use crate::timing::{Picoseconds, picoseconds};

/// A packet between its arrival at the card and the end of its transmission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Address of the first line of its buffer.
    pub(crate) first_line: u64,
    /// When the packet arrived at the card.
    pub(crate) arrived: Picoseconds,
    /// When the card had written all of the packet.
    pub(crate) written: Picoseconds,
}

/// A core that forwards packets, with its rings.
#[derive(Debug, Default)]
pub(crate) struct ForwardingCore {
    /// Free buffers; the one freed last is used first, as from the cache of a DPDK mempool.
    pub(crate) free: Vec<u64>,
    /// Buffers in RX descriptors without a packet, in ring order.
    pub(crate) posted: VecDeque<u64>,
    /// Packets in RX descriptors, in ring order.
    pub(crate) received: VecDeque<Packet>,
    /// The packet that the core works on.
    pub(crate) current: Option<Packet>,
    /// The core has finished `current` and waits for a free TX descriptor.
    pub(crate) blocked: bool,
    /// Lines that the L2 of the core has evicted in the background.
    pub(crate) background_lines: u64,
    /// Packets that wait for transmission.
    pub(crate) tx: VecDeque<Packet>,
}

/// A card, its cores, and their counts since the start of the measurement.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) options: Forwarder,
    /// Index of the first core of this port among all cores of the machine.
    pub(crate) first_core: usize,
    pub(crate) cores: Vec<ForwardingCore>,
    /// Time between the arrivals of two packets.
    pub(crate) gap: Picoseconds,
    /// Shortest time in which the card can send a packet.
    pub(crate) send_time: Picoseconds,
    /// When the card has written all packets that have arrived.
    pub(crate) write_free_at: Picoseconds,
    /// The packet that the card sends, and the core that it belongs to.
    pub(crate) sending: Option<(usize, Packet)>,
    /// The TX queue that the card looks at next.
    next_tx: usize,
    /// Number of buffers that the port uses in turn.
    pub(crate) buffers: u64,
    /// The card does not send before its queues are full.
    pub(crate) filling: bool,
    /// The sender pauses since this time, for a descriptor of this core.
    pub(crate) paused: Option<(Picoseconds, usize)>,
    pub(crate) drops: u64,
    pub(crate) pauses: u64,
    pub(crate) paused_time: Picoseconds,
    /// Time from arrival until sent, of each packet sent.
    pub(crate) latencies: Vec<Picoseconds>,
    cumulative_weights: Vec<f64>,
    /// Draws the cores that receive packets.
    spread: Rng,
    /// Draws the lines that cores read ahead.
    pub(crate) read_ahead: Rng,
}

impl Port {
    /// Port `number` of the machine, before its first packet; its cores start at `first_core`.
    pub(crate) fn new(options: &Forwarder, number: u64, first_core: usize, seed: u64) -> Self {
        let cores = options.cores as usize;
        let stride = options.buffer_stride_bytes / LINE_BYTES;
        let wire_bits = f64::from((options.packet_bytes + WIRE_OVERHEAD_BYTES) * 8);
        let send_gbps = if cores < ENOUGH_TX_QUEUES {
            options.line_gbps.min(FEW_TX_QUEUES_GBPS)
        } else {
            options.line_gbps
        };
        let gap = picoseconds(wire_bits / options.rate_gbps).max(1);
        let send_time = picoseconds(wire_bits / send_gbps).max(1);
        // A card that receives more than it sends, and whose cores keep up, ends with full queues,
        // but only after many packets. The simulation starts with this state.
        let core_time = picoseconds(options.processing_ns() + LLC_NS) / cores.max(1) as u64;
        let filling = gap < send_time && core_time < send_time;
        let queued = if filling { options.tx_descriptors } else { 0 };
        let held = options.descriptors + queued;
        let mut sum = 0.0;
        let cumulative_weights = (0..cores)
            .map(|core| {
                sum += options.weights.get(core).copied().unwrap_or(1.0);
                sum
            })
            .collect();
        Self {
            first_core,
            cores: (first_core..first_core + cores)
                .map(|core| ForwardingCore::new(options, (core as u64 + 1) << 32, stride))
                .collect(),
            gap,
            send_time,
            write_free_at: 0,
            sending: None,
            next_tx: 0,
            buffers: u64::from(options.cores) * u64::from(held),
            filling,
            paused: None,
            drops: 0,
            pauses: 0,
            paused_time: 0,
            latencies: Vec::new(),
            cumulative_weights,
            spread: Rng::new(seed, 2 * number + 1),
            read_ahead: Rng::new(seed, 2 * number + 2),
            options: options.clone(),
        }
    }

    /// Draws the core that receives the next packet, by the weights of the cores.
    pub(crate) fn pick_core(&mut self) -> usize {
        let total = self.cumulative_weights.last().copied().unwrap_or(0.0);
        let drawn = self.spread.unit() * total;
        let core = self.cumulative_weights.partition_point(|&sum| sum <= drawn);
        core.min(self.cores.len() - 1)
    }

    /// Takes the next packet for sending, from the TX queues in turn.
    pub(crate) fn next_to_send(&mut self) -> Option<(usize, Packet)> {
        let cores = self.cores.len();
        for offset in 0..cores {
            let core = (self.next_tx + offset) % cores;
            if let Some(packet) = self.cores[core].tx.pop_front() {
                self.next_tx = (core + 1) % cores;
                return Some((core, packet));
            }
        }
        None
    }

    /// Sets all counts to zero; rings and buffers stay as they are.
    pub(crate) fn reset_counts(&mut self) {
        self.drops = 0;
        self.pauses = 0;
        self.paused_time = 0;
        self.latencies.clear();
    }

    /// The counts of a measurement of length `measured`, without the cache counters.
    pub(crate) fn outcome(&mut self, measured: Picoseconds) -> ForwarderOutcome {
        self.latencies.sort_unstable();
        let packets = self.latencies.len() as u64;
        let bits = f64::from((self.options.packet_bytes + WIRE_OVERHEAD_BYTES) * 8);
        ForwarderOutcome {
            packets,
            drops: self.drops,
            pauses: self.pauses,
            paused_ns: self.paused_time as f64 / 1000.0,
            sent_gbps: packets as f64 * bits / (measured.max(1) as f64 / 1000.0),
            latency_p50_ns: self.percentile(50),
            latency_p99_ns: self.percentile(99),
            ..ForwarderOutcome::default()
        }
    }

    /// The given percentile of the sorted latencies (ns); zero without packets.
    fn percentile(&self, percent: u64) -> f64 {
        let rank = (self.latencies.len() as u64 * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(index(rank)).map_or(0.0, |&latency| latency as f64 / 1000.0)
    }
}

impl ForwardingCore {
    /// A core whose buffers start at line `base`, `stride` lines apart.
    fn new(options: &Forwarder, base: u64, stride: u64) -> Self {
        let posted = u64::from(options.descriptors);
        // Two more: one for the packet at the core, one for the packet that the card sends.
        let all = posted + u64::from(options.tx_descriptors) + 2;
        Self {
            posted: (0..posted).map(|buffer| base + buffer * stride).collect(),
            free: (posted..all).rev().map(|buffer| base + buffer * stride).collect(),
            ..Self::default()
        }
    }
}
