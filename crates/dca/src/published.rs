//! Figures of A. Farshin et al., "Reexamining Direct Cache Access to Optimize I/O Intensive
//! Applications for Multi-hundred-gigabit Networks", USENIX ATC 2020. All hit rates are in percent
//! of device writes; the machine is a Xeon Gold 6140 with a 100 Gbit/s card.

/// A published hit rate and the configuration that it was measured with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Number of cores.
    pub cores: u32,
    /// RX descriptors of each core.
    pub descriptors: u32,
    /// Packet size (bytes).
    pub packet_bytes: u32,
    /// Number of DDIO ways.
    pub ways: u32,
    /// Device writes that hit (percent).
    pub write_hit_percent: f64,
}

/// RX descriptors of the columns of [`FIGURE_6`].
pub const FIGURE_6_DESCRIPTORS: [u32; 6] = [128, 256, 512, 1024, 2048, 4096];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 6: one core, two
/// ways; packet size (bytes), then write hits (percent) for each number of descriptors.
pub const FIGURE_6: [(u32, [f64; 6]); 4] = [
    (256, [100.0, 100.0, 100.0, 100.0, 100.0, 100.0]),
    (512, [100.0, 99.8, 99.8, 99.6, 98.5, 91.9]),
    (1024, [100.0, 98.9, 98.3, 95.9, 89.0, 63.1]),
    (1500, [97.9, 97.8, 96.7, 90.8, 80.1, 39.3]),
];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 5: one core, 4096
/// descriptors, 1024 B; number of DDIO ways and write hits (percent).
pub const FIGURE_5: [(u32, f64); 6] =
    [(2, 63.4), (3, 88.4), (4, 97.2), (5, 99.6), (6, 99.9), (7, 100.0)];

/// DDIO ways of the columns of [`FIGURE_11`].
pub const FIGURE_11_WAYS: [u32; 4] = [2, 4, 6, 8];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 11: 4096 descriptors
/// in all, 1500 B; number of cores, then write hits (percent) for each number of ways.
pub const FIGURE_11: [(u32, [f64; 4]); 3] = [
    (1, [39.2, 87.3, 99.7, 100.0]),
    (2, [25.7, 70.5, 96.3, 99.7]),
    (4, [72.9, 97.7, 100.0, 100.0]),
];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 10: 256 descriptors
/// for each core, 1500 B, two ways; number of cores and write hits (percent).
pub const FIGURE_10: [(u32, f64); 10] = [
    (1, 97.5),
    (2, 72.1),
    (4, 99.5),
    (6, 98.3),
    (8, 91.5),
    (10, 84.7),
    (12, 75.0),
    (14, 63.1),
    (16, 53.2),
    (18, 44.5),
];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 3 (section 4.2):
/// times by which the LLC misses of a forwarder grow when a cache-hungry program shares its ways
/// with DDIO.
pub const FIGURE_3_MISS_GROWTH: f64 = 2.5;

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 12: load of the
/// busiest core, relative to the mean, and by how much wider DDIO lowers the 99th percentile of the
/// latency (percent).
pub const FIGURE_12: [(f64, f64); 2] = [(1.69, 2.0), (2.78, 21.0)];

/// A. Farshin et al., Reexamining Direct Cache Access, USENIX ATC 2020, figure 14 (section 8.1):
/// growth of the 99th percentile of the latency of a forwarder when a second one also uses two
/// DDIO ways (percent); none when the second one bypasses the cache.
pub const FIGURE_14_P99_GROWTH_PERCENT: f64 = 30.0;

/// All points of figures 5, 6 and 11 with one core.
#[must_use]
pub fn one_core_points() -> Vec<Point> {
    let point = |descriptors, packet_bytes, ways, write_hit_percent| Point {
        cores: 1,
        descriptors,
        packet_bytes,
        ways,
        write_hit_percent,
    };
    let figure_6 = FIGURE_6.iter().flat_map(|&(bytes, row)| {
        FIGURE_6_DESCRIPTORS.into_iter().zip(row).map(move |(count, hit)| (count, bytes, 2, hit))
    });
    let figure_5 = FIGURE_5.iter().map(|&(ways, hit)| (4096, 1024, ways, hit));
    let figure_11 = FIGURE_11.iter().filter(|(cores, _)| *cores == 1).flat_map(|&(_, row)| {
        FIGURE_11_WAYS.into_iter().zip(row).map(|(ways, hit)| (4096, 1500, ways, hit))
    });
    figure_6
        .chain(figure_5)
        .chain(figure_11)
        .map(|(count, bytes, ways, hit)| point(count, bytes, ways, hit))
        .collect()
}
