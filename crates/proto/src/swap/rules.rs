use core::time::Duration;

/// Parameters of swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRules {
    /// The deadline after which a rack aborts an open swap.
    pub grace: Duration,
    /// The deadline after which the metadata server ends a granted swap.
    pub server_grace: Duration,
    /// A message without an answer is repeated after this time.
    pub retry: Duration,
    /// How long a requester leaves a page alone after a failed attempt.
    pub pause: Duration,
    /// How long a rack repeats a request. The metadata server drops a request that is not repeated
    /// for this time.
    pub want: Duration,
    /// The most swaps that the metadata server lets run at once.
    pub parallel: usize,
    /// The most requests that wait at the metadata server, and the most of one rack.
    pub wants: usize,
}

impl SwapRules {
    /// Deadlines of milliseconds for a swap, and of a second for waiting.
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
