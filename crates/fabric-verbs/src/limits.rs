use rackpool_fabric::MAX_MESSAGE;

use crate::intake::MOST_RECEIVES;

/// Send requests of a queue pair, if the device supports as many.
const SENDS: u32 = 1024;
/// RDMA reads of a queue pair in flight, if both devices support as many.
const READS: u8 = 16;
/// Minimum length of a queue: the receives of a connection, and the shortest send queue beside
/// them.
#[expect(clippy::cast_possible_truncation, reason = "some hundreds")]
const QUEUE: u32 = 2 * MOST_RECEIVES as u32;
/// The longest message must fit into one request.
#[expect(clippy::cast_possible_truncation, reason = "some thousands")]
const MESSAGE: u32 = MAX_MESSAGE as u32;

/// Capabilities of a device, or limits on its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Length of one registration, in bytes (`max_mr_size`).
    pub registration: u64,
    /// Work requests in one queue (`max_qp_wr`).
    pub queue: u32,
    /// Entries in a completion queue (`max_cqe`).
    pub completions: u32,
    /// RDMA reads that a queue pair answers concurrently (`max_qp_rd_atom`).
    pub reads_answered: u8,
    /// RDMA reads that a queue pair has in flight (`max_qp_init_rd_atom`).
    pub reads_asked: u8,
    /// Bytes that one work request moves (`max_msg_sz`). Longer transfers are split.
    pub message: u32,
}

impl DeviceLimits {
    /// No limits.
    pub const ANY: Self = Self {
        registration: u64::MAX,
        queue: u32::MAX,
        completions: u32::MAX,
        reads_answered: u8::MAX,
        reads_asked: u8::MAX,
        message: u32::MAX,
    };

    /// The least with which a connection can be made. The length of registrations is not part of
    /// it: each region is registered as a whole, so it depends on the memory.
    pub const LEAST: Self = Self {
        registration: u64::MAX,
        queue: QUEUE,
        completions: QUEUE,
        reads_answered: 1,
        reads_asked: 1,
        message: MESSAGE,
    };

    /// The minimum of each limit.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            registration: self.registration.min(other.registration),
            queue: self.queue.min(other.queue),
            completions: self.completions.min(other.completions),
            reads_answered: self.reads_answered.min(other.reads_answered),
            reads_asked: self.reads_asked.min(other.reads_asked),
            message: self.message.min(other.message),
        }
    }

    /// Checks that a connection can be made; the error names everything that is missing.
    pub(crate) fn check(self) -> Result<(), String> {
        let Self { queue, completions, reads_answered, reads_asked, message, .. } = self;
        let short = [
            ("work requests in a queue", u64::from(queue), u64::from(Self::LEAST.queue)),
            ("completions in a queue", u64::from(completions), u64::from(Self::LEAST.completions)),
            ("reads answered at once", reads_answered.into(), Self::LEAST.reads_answered.into()),
            ("reads on the way at once", reads_asked.into(), Self::LEAST.reads_asked.into()),
            ("bytes in a message", message.into(), Self::LEAST.message.into()),
        ]
        .into_iter()
        .filter(|(_, has, needed)| has < needed)
        .map(|(what, has, needed)| format!("{what}: {has}, and {needed} are needed"))
        .collect::<Vec<_>>();
        if short.is_empty() { Ok(()) } else { Err(short.join("; ")) }
    }

    /// Checks that memory of `len` bytes can be registered; the error is a text for operators.
    pub(crate) fn check_registration(self, len: u64) -> Result<(), String> {
        if len > self.registration {
            let most = self.registration;
            return Err(format!("{len} B, and the device registers at most {most} B at once"));
        }
        Ok(())
    }

    /// Length of the send queue beside `receives` receives, if both complete on one completion
    /// queue.
    pub(crate) fn sends(self, receives: u32) -> u32 {
        SENDS.min(self.queue).min(self.completions.saturating_sub(receives))
    }

    /// RDMA reads of a peer that a queue pair answers concurrently.
    pub(crate) fn reads_answered(self) -> u8 {
        self.reads_answered.min(READS)
    }

    /// RDMA reads that a queue pair has in flight to a peer that answers `answered` concurrently.
    pub(crate) fn reads_asked(self, answered: u8) -> u8 {
        self.reads_asked.min(answered).clamp(1, READS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVES: u32 = QUEUE / 2;

    #[test]
    fn no_more_is_used_than_there_is_and_no_more_than_is_of_use() {
        let least = DeviceLimits::LEAST;
        assert_eq!(least.check(), Ok(()));
        assert_eq!(least.sends(RECEIVES), RECEIVES, "they share the completions");
        assert_eq!((least.reads_answered(), least.reads_asked(16)), (1, 1));

        let any = DeviceLimits::ANY;
        assert_eq!(any.check(), Ok(()));
        assert_eq!(
            (any.sends(RECEIVES), any.reads_answered(), any.reads_asked(200)),
            (1024, 16, 16)
        );
        assert_eq!(any.reads_asked(4), 4, "the peer answers no more");
        assert_eq!(DeviceLimits { queue: 300, ..any }.sends(RECEIVES), 300);
        assert_eq!(DeviceLimits { completions: 300, ..any }.sends(RECEIVES), 300 - RECEIVES);
        assert_eq!(any.min(least), DeviceLimits { registration: u64::MAX, ..least });
    }

    #[test]
    fn a_device_that_can_do_less_is_refused_with_all_that_it_lacks() {
        let least = DeviceLimits::LEAST;
        let lacking = DeviceLimits { queue: least.queue - 1, reads_asked: 0, ..least };
        let needed = least.queue;
        assert_eq!(
            lacking.check(),
            Err(format!(
                "work requests in a queue: {}, and {needed} are needed; reads on the way at once: 0, and 1 are needed",
                needed - 1
            ))
        );
        for lacking in [
            DeviceLimits { completions: least.completions - 1, ..least },
            DeviceLimits { reads_answered: 0, ..least },
            DeviceLimits { message: least.message - 1, ..least },
        ] {
            assert!(lacking.check().is_err(), "{lacking:?}");
        }
    }

    #[test]
    fn what_is_too_long_to_be_registered_is_refused_with_both_lengths() {
        let limits = DeviceLimits { registration: 4096, ..DeviceLimits::ANY };
        assert_eq!(limits.check_registration(4096), Ok(()));
        assert_eq!(
            limits.check_registration(4097),
            Err("4097 B, and the device registers at most 4096 B at once".into())
        );
    }
}
