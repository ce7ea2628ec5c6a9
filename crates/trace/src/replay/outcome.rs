use std::time::Duration;

/// What a policy did with a trace, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Accesses in all.
    pub accesses: u64,
    /// Of these, those to pages of the own rack.
    pub local: u64,
    /// Pages that were hot at another rack and were asked for.
    pub asked: u64,
    /// Swaps that were committed.
    pub swaps: u64,
    /// Pages that moved, of those that are used: at most two of each swap.
    pub moves: u64,
    /// Ping-pong: moves that brought a page back to a rack that it had left.
    pub returns: u64,
    /// Swaps that were begun and given up.
    pub given_up: u64,
    /// Why pages that were asked for stayed.
    pub refused: Refused,
    /// Bytes copied.
    pub bytes_moved: u64,
    /// What all accesses are taken to cost together.
    pub time: Duration,
}

/// Why pages stayed where they were, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The requester had nothing cold to give.
    pub nothing_to_offer: u64,
    /// The page was at least as hot at its home.
    pub hotter: u64,
    /// The same, and the requester mostly reads it.
    pub read_hot: u64,
    /// It had come lately.
    pub rests: u64,
    /// It was in another swap, or had moved meanwhile.
    pub unavailable: u64,
    /// As many swaps as may be were under way, or no frame was free.
    pub full: u64,
    /// By the metadata server.
    pub by_server: u64,
}

impl Refused {
    /// All of them.
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
    /// The share of accesses that were local, from 0 to 1; 1 when there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn local_share(&self) -> f64 {
        if self.accesses == 0 { 1.0 } else { self.local as f64 / self.accesses as f64 }
    }

    /// What an access is taken to cost on average.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.time.as_nanos() / u128::from(self.accesses.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
