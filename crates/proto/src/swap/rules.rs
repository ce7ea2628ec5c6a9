use core::time::Duration;

/// Times and bounds of swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRules {
    /// How long a rack keeps an open swap up.
    pub grace: Duration,
    /// How long the metadata server keeps a begun swap locked.
    pub server_grace: Duration,
    /// After so long without an answer a message is sent again.
    pub retry: Duration,
    /// How long a requester that got no swap leaves the page alone.
    pub pause: Duration,
    /// How long a rack repeats a want. A want that is not repeated for as long is dropped.
    pub want: Duration,
    /// How many swaps the metadata server lets run at once.
    pub parallel: usize,
    /// How many wants may wait at the metadata server, and how many a rack may have.
    pub wants: usize,
}

impl SwapRules {
    /// Milliseconds for a swap, a second to wait for it.
    pub const DEFAULT: Self = Self {
        grace: Duration::from_millis(100),
        server_grace: Duration::from_millis(300),
        retry: Duration::from_millis(5),
        pause: Duration::from_millis(200),
        want: Duration::from_secs(1),
        parallel: 16,
        wants: 256,
    };
}
