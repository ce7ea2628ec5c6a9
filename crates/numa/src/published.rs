//! The values that Nelson and Palmieri publish (SRDS 2020), in millions of operations a second or
//! thousands of requests a second.

/// Figure 5: 8 connections, 8 B; threads that write the registered memory, with writes to the
/// card's node, writes to the other node, reads of the card's node, reads of the other node.
pub const FIGURE_5: [(u32, [f64; 4]); 5] = [
    (0, [6.05, 6.05, 5.91, 5.51]),
    (4, [5.48, 6.37, 5.07, 5.26]),
    (8, [3.41, 6.05, 3.53, 4.68]),
    (16, [3.47, 6.05, 3.54, 4.47]),
    (48, [3.48, 6.05, 3.47, 4.65]),
];

/// Figure 6: a key-value server, 67 B pairs, 8 connections, by load (none, programs on the card's
/// node, programs on the other node): server and clients on the card's node, clients there and the
/// server on the other node, both on the other node.
pub const FIGURE_6: [[f64; 3]; 3] =
    [[626.0, 535.0, 515.0], [334.0, 568.0, 564.0], [573.0, 320.0, 313.0]];

/// Latency of the card's node's cache and of the other node's memory, in ns, and of a read, in us.
pub const LATENCIES: (f64, f64, f64) = (38.0, 122.0, 2.3);
