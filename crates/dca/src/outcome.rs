//! What a simulation or a replay counts.

use std::ops::AddAssign;

/// Counters in cache lines of 64 bytes, except where a name says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Device writes of a line that a cache held (`ItoM` hits).
    pub device_write_hits: u64,
    /// Device writes that allocated a line in the DDIO ways (`ItoM` misses).
    pub device_write_misses: u64,
    /// Device writes that went to memory: to the other socket, or with DDIO disabled.
    pub device_writes_bypassed: u64,
    /// Device reads of a line that a cache held (`PCIRdCur` hits).
    pub device_read_hits: u64,
    /// Device reads from memory (`PCIRdCur` misses).
    pub device_read_misses: u64,
    /// Core accesses that hit the core's own L2.
    pub core_l2_hits: u64,
    /// Core accesses that hit the LLC or the L2 of another core.
    pub core_llc_hits: u64,
    /// Core accesses that read memory (LLC misses).
    pub core_misses: u64,
    /// Lines that a device wrote and that left the LLC before a core or a device read them.
    pub leaked_lines: u64,
    /// Bytes read from memory.
    pub memory_read_bytes: u64,
    /// Bytes written to memory.
    pub memory_write_bytes: u64,
}

impl Counters {
    /// All device writes, in lines.
    #[must_use]
    pub fn device_writes(&self) -> u64 {
        self.device_write_hits + self.device_write_misses + self.device_writes_bypassed
    }

    /// All device reads, in lines.
    #[must_use]
    pub fn device_reads(&self) -> u64 {
        self.device_read_hits + self.device_read_misses
    }

    /// All core accesses, in lines.
    #[must_use]
    pub fn core_accesses(&self) -> u64 {
        self.core_l2_hits + self.core_llc_hits + self.core_misses
    }

    /// Hits in percent of the device writes that did not bypass the cache; `None` without any.
    #[must_use]
    pub fn write_hit_percent(&self) -> Option<f64> {
        percent(self.device_write_hits, self.device_write_hits + self.device_write_misses)
    }

    /// Hits in percent of the device reads; `None` without any.
    #[must_use]
    pub fn read_hit_percent(&self) -> Option<f64> {
        percent(self.device_read_hits, self.device_reads())
    }

    /// Lines leaked in percent of the device writes; `None` without any.
    #[must_use]
    pub fn leaked_percent(&self) -> Option<f64> {
        percent(self.leaked_lines, self.device_writes())
    }

    /// LLC misses in percent of the core accesses that missed the core's L2; `None` without any.
    #[must_use]
    pub fn core_miss_percent(&self) -> Option<f64> {
        percent(self.core_misses, self.core_llc_hits + self.core_misses)
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.device_write_hits += other.device_write_hits;
        self.device_write_misses += other.device_write_misses;
        self.device_writes_bypassed += other.device_writes_bypassed;
        self.device_read_hits += other.device_read_hits;
        self.device_read_misses += other.device_read_misses;
        self.core_l2_hits += other.core_l2_hits;
        self.core_llc_hits += other.core_llc_hits;
        self.core_misses += other.core_misses;
        self.leaked_lines += other.leaked_lines;
        self.memory_read_bytes += other.memory_read_bytes;
        self.memory_write_bytes += other.memory_write_bytes;
    }
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

/// What one forwarder did in the measured part of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwarderOutcome {
    /// Cache accesses for this forwarder.
    pub counters: Counters,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because no RX descriptor was free or the buffer of the card was full.
    pub drops: u64,
    /// Times that the sender paused because no RX descriptor was free.
    pub pauses: u64,
    /// Time that the sender paused (ns).
    pub paused_ns: f64,
    /// Rate at which packets were sent, wire overhead included (Gbit/s).
    pub sent_gbps: f64,
    /// Median time from arrival at the card until sent (ns).
    pub latency_p50_ns: f64,
    /// 99th percentile of the time from arrival at the card until sent (ns).
    pub latency_p99_ns: f64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// One entry for each forwarder, in the order given.
    pub forwarders: Vec<ForwarderOutcome>,
    /// One entry for each cache-hungry program, in the order given.
    pub readers: Vec<Counters>,
    /// Sum over all programs.
    pub total: Counters,
    /// Length of the measured part (ns of simulated time).
    pub measured_ns: f64,
}
