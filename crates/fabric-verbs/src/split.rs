//! Splits transfers into work requests.

use rackpool_fabric::Transfer;

const WORD: u64 = 8;

/// The constraints on one work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The most bytes that one work request of the device may move.
    pub(crate) max: u32,
    /// True if whole words must be requests of their own, separate from the bytes before and after
    /// them. Soft-RoCE copies a packet by words from its first byte; at the packet's end, a kernel
    /// may copy some bytes twice, in two overlapping words.
    pub(crate) at_words: bool,
}

impl Cut {
    /// The next part of a transfer whose first `done` bytes are in earlier parts.
    pub(crate) fn part(self, transfer: &Transfer, done: u32) -> Transfer {
        let local_offset = transfer.local_offset + u64::from(done);
        let remote_offset = transfer.remote_offset + u64::from(done);
        let left = transfer.len - done;
        let mut len = left.min(self.max);
        let can_be_whole = (local_offset ^ remote_offset).is_multiple_of(WORD);
        if self.at_words && can_be_whole {
            let before = u32::try_from((WORD - remote_offset % WORD) % WORD).unwrap_or(0);
            let words = len - len % 8;
            len = match before {
                0 if words > 0 => words,
                0 => len,
                before => len.min(before),
            };
        }
        Transfer { local_offset, remote_offset, len, ..*transfer }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_fabric::{RegionId, RemoteRegion};

    use super::*;

    fn transfer(local_offset: u64, remote_offset: u64, len: u32) -> Transfer {
        Transfer { local: RegionId(1), local_offset, remote: RemoteRegion(0), remote_offset, len }
    }

    /// The lengths of all parts; checks that the parts are contiguous.
    fn parts(cut: Cut, whole: Transfer) -> Vec<u32> {
        let (mut done, mut lens) = (0, Vec::new());
        while done < whole.len {
            let part = cut.part(&whole, done);
            assert_eq!(part.local_offset, whole.local_offset + u64::from(done));
            assert_eq!(part.remote_offset, whole.remote_offset + u64::from(done));
            assert!((1..=cut.max).contains(&part.len), "{part:?}");
            lens.push(part.len);
            done += part.len;
        }
        assert_eq!(done, whole.len);
        lens
    }

    #[test]
    fn long_transfers_are_cut_into_parts_that_follow_each_other() {
        let card = Cut { max: 20, at_words: false };
        assert_eq!(parts(card, transfer(100, 1000, 50)), [20, 20, 10]);
    }

    #[test]
    fn whole_words_are_parts_of_their_own_for_software() {
        let software = Cut { max: 1 << 20, at_words: true };
        for (remote, len, expected) in [
            (1000, 64, &[64][..]),
            (1000, 60, &[56, 4]),
            (1004, 64, &[4, 56, 4]),
            (1005, 504, &[3, 496, 5]),
            (1003, 5, &[5]),
            (1003, 13, &[5, 8]),
            (1001, 3, &[3]),
            (1000, 7, &[7]),
        ] {
            assert_eq!(parts(software, transfer(remote - 800, remote, len)), expected, "{remote}");
        }
        assert_eq!(parts(software, transfer(101, 1000, 50)), [50], "no word can be whole");
        let small = Cut { max: 20, ..software };
        assert_eq!(parts(small, transfer(100, 1004, 50)), [4, 16, 16, 8, 6]);
    }
}
