/// Counters for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpcMetrics {
    /// Requests answered by a message alone.
    pub pure: u64,
    /// Requests whose data was read after the answer.
    pub then_one_sided: u64,
    /// Requests whose data was written by the peer.
    pub zero_copy: u64,
    /// Requests that were cancelled by their owner or given up at their deadline.
    pub given_up: u64,
    /// Answers that arrived after their request had ended, and were dropped.
    pub late: u64,
    /// Requests received from peers.
    pub asked: u64,
    /// One-sided operations posted, including the owner's transfers.
    pub operations: u64,
    /// Messages sent: requests, answers, releases and cancellations.
    pub messages: u64,
    /// Flushes of the fabric: one for each peer in a poll round that had something for it.
    pub doorbells: u64,
}
