//! Synthetic load: packet forwarders, and programs that read memory at random.

use std::fmt;

use crate::OptionsError;
use crate::assumptions::{
    BACKGROUND_LINES_PER_US, BUFFER_STRIDE_BYTES, READ_AHEAD_LINES, TX_DESCRIPTORS,
};
use crate::machine::{DmaPath, LINE_BYTES};
use crate::mask::WayMask;

/// The largest packet (bytes).
const MAX_PACKET_BYTES: u32 = 9216;

/// The longest RX or TX ring (descriptors).
const MAX_DESCRIPTORS: u32 = 65_536;

/// The largest number of cores of one program.
const MAX_CORES: u32 = 256;

/// A program that forwards the packets of its own card. Each core has one RX ring and one TX path.
///
/// The card writes a packet, a core reads and rewrites the header in the first line, and the card
/// reads the packet for sending.
#[derive(Clone, Debug, PartialEq)]
pub struct Forwarder {
    /// Number of cores.
    pub cores: u32,
    /// RX descriptors of each core. Each descriptor holds one packet buffer.
    pub descriptors: u32,
    /// Packets that the TX ring and the software queue of each core hold. A core waits while they
    /// are full.
    pub tx_descriptors: u32,
    /// Packet size (bytes).
    pub packet_bytes: u32,
    /// Offered rate, wire overhead included (Gbit/s).
    pub rate_gbps: f64,
    /// Rate of the line of the card (Gbit/s).
    pub line_gbps: f64,
    /// Share of the packets that each core receives, relative to the others. Empty: equal shares.
    pub weights: Vec<f64>,
    /// Cycles to forward a packet, without the access to its header.
    pub base_cycles: f64,
    /// Cycles for additional processing of a packet.
    pub extra_cycles: f64,
    /// Clock of the cores (GHz).
    pub clock_ghz: f64,
    /// Lines of a packet beside its header, drawn at random, that a core moves through its L2 when
    /// no other packet waits.
    pub read_ahead_lines: f64,
    /// Other lines that the L2 of each core evicts into the LLC in a microsecond.
    pub background_lines_per_us: f64,
    /// Distance of packet buffers in memory (bytes): a multiple of 64, not below `packet_bytes`.
    pub buffer_stride_bytes: u64,
    /// LLC ways into which the L2s of the cores evict.
    pub cat_mask: WayMask,
    /// Where the writes of the card go.
    pub path: DmaPath,
    /// Pause the sender while no RX descriptor is free, instead of dropping packets.
    pub pause: bool,
}

impl Default for Forwarder {
    /// One core of 2.3 GHz that receives 1500 B packets at 100 Gbit/s in a ring of 1024.
    ///
    /// Assumption: 280 cycles a packet, so that one core forwards about 90 Gbit/s of 1500 B packets
    /// (figure 7).
    fn default() -> Self {
        Self {
            cores: 1,
            descriptors: 1024,
            tx_descriptors: TX_DESCRIPTORS,
            packet_bytes: 1500,
            rate_gbps: 100.0,
            line_gbps: 100.0,
            weights: Vec::new(),
            base_cycles: 280.0,
            extra_cycles: 0.0,
            clock_ghz: 2.3,
            read_ahead_lines: READ_AHEAD_LINES,
            background_lines_per_us: BACKGROUND_LINES_PER_US,
            buffer_stride_bytes: BUFFER_STRIDE_BYTES,
            cat_mask: WayMask(0x7ff),
            path: DmaPath::Ddio,
            pause: false,
        }
    }
}

impl Forwarder {
    /// Cache lines of a packet.
    #[must_use]
    pub fn lines_per_packet(&self) -> u64 {
        u64::from(self.packet_bytes).div_ceil(LINE_BYTES)
    }

    /// Lines of all RX buffers. Buffers in TX queues add to them.
    #[must_use]
    pub fn footprint_lines(&self) -> u64 {
        u64::from(self.cores) * u64::from(self.descriptors) * self.lines_per_packet()
    }

    /// Time to process a packet, without the access to its header (ns).
    pub(crate) fn processing_ns(&self) -> f64 {
        (self.base_cycles + self.extra_cycles) / self.clock_ghz
    }

    /// Checks all options except `cat_mask`, which the machine checks.
    ///
    /// # Errors
    /// Returns the first option outside its valid range.
    pub fn check(&self) -> Result<(), OptionsError> {
        within("cores", self.cores, 1, MAX_CORES)?;
        within("descriptors", self.descriptors, 1, MAX_DESCRIPTORS)?;
        within("tx_descriptors", self.tx_descriptors, 1, MAX_DESCRIPTORS)?;
        within("packet_bytes", self.packet_bytes, 64, MAX_PACKET_BYTES)?;
        within("rate_gbps", self.rate_gbps, 0.1, 10_000.0)?;
        within("line_gbps", self.line_gbps, 0.1, 10_000.0)?;
        within("clock_ghz", self.clock_ghz, 0.1, 100.0)?;
        within("base_cycles", self.base_cycles, 0.0, 1e6)?;
        within("extra_cycles", self.extra_cycles, 0.0, 1e6)?;
        within("read_ahead_lines", self.read_ahead_lines, 0.0, 100.0)?;
        within("background_lines_per_us", self.background_lines_per_us, 0.0, 1000.0)?;
        OptionsError::check(
            self.rate_gbps <= self.line_gbps,
            "rate_gbps",
            &self.rate_gbps,
            &format_args!("give at most line_gbps = {}", self.line_gbps),
        )?;
        let stride = self.buffer_stride_bytes;
        OptionsError::check(
            stride.is_multiple_of(LINE_BYTES)
                && (u64::from(self.packet_bytes)..=1 << 20).contains(&stride),
            "buffer_stride_bytes",
            &stride,
            &format_args!("give a multiple of 64 from {} to 1048576", self.packet_bytes),
        )?;
        let weights_valid = self.weights.iter().all(|weight| (0.0..=1e6).contains(weight))
            && (self.weights.is_empty() || self.weights.iter().sum::<f64>() > 0.0);
        OptionsError::check(
            weights_valid && (self.weights.is_empty() || self.weights.len() == self.cores as usize),
            "weights",
            &format_args!("{:?}", self.weights),
            &format_args!(
                "give {} numbers from 0 to 1000000, not all of them 0, or none",
                self.cores
            ),
        )
    }
}

/// A cache-hungry program on a core of its own: it reads random lines of its working set.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomReader {
    /// Size of the working set (bytes), 64 B to 64 GiB.
    pub working_set_bytes: u64,
    /// Reads in a microsecond.
    pub reads_per_us: f64,
    /// LLC ways into which the L2 of the core evicts.
    pub cat_mask: WayMask,
}

impl Default for RandomReader {
    /// 64 MiB, 128 reads in a microsecond (8.2 GB/s), all ways.
    fn default() -> Self {
        Self { working_set_bytes: 64 << 20, reads_per_us: 128.0, cat_mask: WayMask(0x7ff) }
    }
}

impl RandomReader {
    /// Checks all options except `cat_mask`, which the machine checks.
    ///
    /// # Errors
    /// Returns the first option outside its valid range.
    pub fn check(&self) -> Result<(), OptionsError> {
        within("reads_per_us", self.reads_per_us, 0.001, 10_000.0)?;
        within("working_set_bytes", self.working_set_bytes, LINE_BYTES, 64 << 30)
    }
}

/// Checks that `value` lies from `low` to `high`.
pub(crate) fn within<T: PartialOrd + fmt::Display + Copy>(
    option: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), OptionsError> {
    let advice = format_args!("give a number from {low} to {high}");
    OptionsError::check(low <= value && value <= high, option, &value, &advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_range_are_rejected_with_advice() {
        let bad = [
            Forwarder { cores: 0, ..Forwarder::default() },
            Forwarder { rate_gbps: f64::NAN, ..Forwarder::default() },
            Forwarder { rate_gbps: 200.0, ..Forwarder::default() },
            Forwarder { packet_bytes: 9217, ..Forwarder::default() },
            Forwarder { buffer_stride_bytes: 1024, ..Forwarder::default() },
            Forwarder { weights: vec![1.0, 2.0], ..Forwarder::default() },
            Forwarder { weights: vec![0.0], ..Forwarder::default() },
        ];
        for forwarder in bad {
            let error = forwarder.check().unwrap_err();
            assert!(error.advice.contains("give"), "{error}");
        }
        assert_eq!(Forwarder::default().check(), Ok(()));
        assert_eq!(RandomReader::default().check(), Ok(()));
    }

    #[test]
    fn the_footprint_is_descriptors_times_lines() {
        let forwarder = Forwarder { cores: 4, descriptors: 256, ..Forwarder::default() };
        assert_eq!(forwarder.footprint_lines(), 4 * 256 * 24);
    }
}
