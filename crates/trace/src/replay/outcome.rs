use std::time::Duration;

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// All accesses.
    pub accesses: u64,
    /// Accesses to pages of the same rack.
    pub local: u64,
    /// Requests to the metadata server for pages that were hot at another rack; repetitions of a
    /// request do not count.
    pub asked: u64,
    /// Committed swaps.
    pub swaps: u64,
    /// Moves of pages that the trace accesses: at most two for each swap.
    pub moves: u64,
    /// Ping-pong: moves of a page back to a rack that it had left.
    pub returns: u64,
    /// Swaps that began and were aborted.
    pub given_up: u64,
    /// Refusals by reason.
    pub refused: Refused,
    /// Bytes copied.
    pub bytes_moved: u64,
    /// The total cost of all accesses.
    pub time: Duration,
}

/// Counts of refusals by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The requester had neither a free page nor a cold one to offer.
    pub nothing_to_offer: u64,
    /// The page was at least as hot at its home.
    pub hotter: u64,
    /// The same, and the page was read-hot at the requester.
    pub read_hot: u64,
    /// The page rested.
    pub rests: u64,
    /// The page was in another swap, or had moved.
    pub unavailable: u64,
    /// The home had no free record or spare frame.
    pub full: u64,
    /// Refused by the metadata server.
    pub by_server: u64,
}

impl Refused {
    /// Returns the sum.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.nothing_to_offer
            + self.hotter
            + self.read_hot
            + self.rests
            + self.unavailable
            + self.full
            + self.by_server
    }
}

impl Outcome {
    /// Returns the share of accesses that were local, from 0 to 1; 1 without accesses.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    pub fn local_share(&self) -> f64 {
        if self.accesses == 0 { 1.0 } else { self.local as f64 / self.accesses as f64 }
    }

    /// Returns the mean cost of an access.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.time.as_nanos() / u128::from(self.accesses.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
