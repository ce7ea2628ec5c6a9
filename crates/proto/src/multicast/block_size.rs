//! The best size of a block.

use core::time::Duration;

use super::schedule::Shape;

/// Blocks are multiples of this, so that a block is read in bulk.
pub const SMALLEST: u64 = 64 << 10;
/// A read that fails is repeated whole, so a block is not larger.
pub const LARGEST: u64 = 8 << 20;
/// Blocks for each step until the first block is everywhere, so that these steps are a small part
/// of all. Latency that was measured on busy links or cores is too long, and would make blocks too
/// large.
const BLOCKS_PER_FILL_STEP: u128 = 32;

/// The block size, in bytes, with which a message of `message` bytes arrives first everywhere.
///
/// Each step takes the latency and the time of a block; a schedule takes a step for each block and
/// `e` more until the first block has reached everybody. The sum is least at
/// `sqrt(e * M / (a * b))` blocks, for message M, latency a, bandwidth b. For a binomial pipeline
/// among a power of two of members `e` is `log2 n - 1`. There are at least about `32 e`
/// blocks, unless they would be smaller than [`SMALLEST`].
#[must_use]
pub fn block_bytes(shape: &Shape, message: u64, latency: Duration, bytes_per_second: u64) -> u64 {
    let extra = u128::from(shape.fill_steps());
    let on_wire = latency.as_nanos().saturating_mul(bytes_per_second.into()) / 1_000_000_000;
    let square = u128::from(message).saturating_mul(on_wire.max(1));
    let best = square.checked_div(extra).map_or(u128::from(LARGEST), u128::isqrt);
    let most = u128::from(message).checked_div(BLOCKS_PER_FILL_STEP * extra);
    let best = best.min(most.unwrap_or(best));
    let best = u64::try_from(best).unwrap_or(LARGEST).clamp(SMALLEST, LARGEST);
    best.next_multiple_of(SMALLEST)
}

/// The number of blocks of a message; 1 for an empty one.
#[must_use]
pub fn blocks(message: u64, block_bytes: u64) -> u32 {
    let blocks = message.div_ceil(block_bytes.max(1)).max(1);
    u32::try_from(blocks).unwrap_or(u32::MAX)
}
