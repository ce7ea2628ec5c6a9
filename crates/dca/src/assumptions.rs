//! Constants that the paper does not give. Each one is an assumption of the model.
//!
//! The three constants that are calibrated act on several cores: a single core that forwards at its
//! limit neither fills its TX queue nor reads ahead, and its background evictions are rare beside
//! its packets. Nothing is calibrated on the one-core tables of figures 5, 6 and 11.

/// Assumption: time of a core access that hits its L2 (ns); 14 cycles at 2.3 GHz.
pub const L2_NS: f64 = 6.0;

/// Assumption: time of an access that hits the LLC or the L2 of another core (ns).
pub const LLC_NS: f64 = 20.0;

/// Time of an access to local memory (ns). The paper's section 2 gives about 100 ns.
pub const MEMORY_NS: f64 = 100.0;

/// Assumption: additional time of an access to the memory of the other socket (ns).
pub const OTHER_SOCKET_NS: f64 = 60.0;

/// Assumption: lines that a card has in flight to memory, in each direction. The time to move a
/// packet is the sum of its line times divided by this number.
pub const DMA_LINES_IN_FLIGHT: f64 = 32.0;

/// Assumption: time for which a card buffers packets when its writes are slower than the line (ns).
pub const CARD_BUFFER_NS: f64 = 20_000.0;

/// Bytes that a packet takes on the wire beside its own: preamble, start of frame and gap.
pub const WIRE_OVERHEAD_BYTES: u32 = 20;

/// Assumption: highest rate at which a card reads packets for sending while it has fewer than
/// [`ENOUGH_TX_QUEUES`] TX queues (Gbit/s). One core receives less than this; two cores at
/// 100 Gbit/s receive more, so that their TX queues fill. Read off figure 8: with two cores, the
/// read hit rate falls once the throughput exceeds 98 Gbit/s.
pub const FEW_TX_QUEUES_GBPS: f64 = 98.0;

/// Assumption: number of TX queues from which on a card sends at the rate of the line. Figure 10
/// of the paper shows the full TX queues with two cores, and not with four.
pub const ENOUGH_TX_QUEUES: usize = 4;

/// Assumption: packets that the TX path of a core (TX ring and software queue) holds when full.
/// Calibrated on one configuration: figure 10, 2 cores, 256 descriptors for each core, 1500 B
/// (paper 72.1 %, model 71.6 %).
pub const TX_DESCRIPTORS: u32 = 800;

/// Assumption: mean number of lines of a packet, beside its header, that prefetchers and the core's
/// own reads move through the L2 when no other packet waits; from there they reach any LLC way.
/// Chosen small; [`BACKGROUND_LINES_PER_US`] is calibrated for this value.
pub const READ_AHEAD_LINES: f64 = 0.5;

/// Assumption: other lines (code, tables, statistics, operating system) that the L2 of each
/// forwarding core evicts into the LLC in a microsecond. Calibrated on one configuration: figure
/// 11, 4 cores, 4096 descriptors in all, 1500 B, 2 ways (paper 72.9 %, model 72.3 %).
pub const BACKGROUND_LINES_PER_US: f64 = 6.0;

/// Assumption: distance of packet buffers in memory (bytes): `DPDK`'s 128 B of metadata, 128 B of
/// headroom, 2 KiB of data, and padding that spreads buffers over memory channels.
pub const BUFFER_STRIDE_BYTES: u64 = 2368;
