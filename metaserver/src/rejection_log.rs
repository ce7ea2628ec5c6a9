use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use crate::admission::Rejection;

/// Maximum number of log lines about unauthenticated peers in each period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// Logs rejected peers, with a bounded number of lines.
#[derive(Debug)]
pub(crate) struct Complaints {
    since: Instant,
    lines: u32,
    untold: u64,
}

impl Complaints {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), lines: 0, untold: 0 }
    }

    /// Logs or counts a rejected peer.
    pub(crate) fn rejected(&mut self, peer: SocketAddr, why: &Rejection) {
        if let Rejection::Left | Rejection::Io(_) = why {
            debug!("connection from {peer}: {why}");
            return;
        }
        self.tell_if_due();
        if self.lines < LINES {
            self.lines += 1;
            warn!("closed the connection from {peer}: {why}");
        } else {
            self.untold += 1;
        }
    }

    /// Returns when [`tell_if_due`](Self::tell_if_due) has something to log.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (self.untold > 0).then(|| self.since + PERIOD)
    }

    /// Logs the number of peers that had no line of their own.
    pub(crate) fn tell_if_due(&mut self) {
        if self.since.elapsed() < PERIOD {
            return;
        }
        if self.untold > 0 {
            warn!("closed {} more connections of unauthenticated peers", self.untold);
        }
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_rejections_get_a_few_lines_and_a_number() {
        let mut complaints = Complaints::new();
        for _ in 0..1000 {
            complaints.rejected(([127, 0, 0, 1], 1).into(), &Rejection::Silent);
        }
        assert_eq!((complaints.lines, complaints.untold), (LINES, 990));
        complaints.tell_if_due();
        assert_eq!(complaints.untold, 990, "later");
        tokio::time::sleep_until(complaints.deadline().unwrap()).await;
        complaints.tell_if_due();
        assert_eq!((complaints.lines, complaints.untold), (0, 0));
        assert_eq!(complaints.deadline(), None);
    }
}
