/// Counts for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpcMetrics {
    /// Requests answered by a message alone.
    pub pure: u64,
    /// Requests whose data was read after the answer.
    pub then_one_sided: u64,
    /// Requests whose data was written by the peer.
    pub zero_copy: u64,
    /// Requests that were given up, by their owner or by time.
    pub given_up: u64,
    /// Answers that came for requests of the past, and were dropped.
    pub late: u64,
    /// Requests of peers.
    pub asked: u64,
    /// One-sided operations posted, transfers of the owner included.
    pub operations: u64,
    /// Messages sent: requests, answers, and what ends them.
    pub messages: u64,
    /// How often the fabric was told to ring for both: once for each peer in a poll round that had
    /// something for it.
    pub doorbells: u64,
}
