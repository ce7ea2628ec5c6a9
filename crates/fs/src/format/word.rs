//! The words that lead to a file's contents.
//!
//! ```text
//! word   63 address / 128 7 | 6 zero 3 | 2 kind 1 | 0 fresh       0: a hole
//! kind   1: bytes (a run of 64 KiB, or a block of 4 KiB) | 2: a split cluster | 3: a node
//! ```
//!
//! The contents are *clusters* of 64 KiB: a run, or 16 words of blocks. The first cluster hangs at
//! the head, the next 512 at a node of 512 words, the next 512^2 at a node of nodes, up to level 6.
//! A word is set once, by publishing a reservation (publication.md), and changes again only when no
//! other mount has the file open. *Fresh*: the first 8 bytes of the linked object may still hold
//! the reservation's token.

use rackpool_client::GlobalAddr;

use crate::error::FsError;

pub(crate) const BLOCK_BYTES: u64 = BLOCK_LEN as u64;
pub(crate) const BLOCK_LEN: usize = 4 << 10;
pub(crate) const CLUSTER_BYTES: u64 = CLUSTER_LEN as u64;
/// The same, for lengths of this program's memory.
pub(crate) const CLUSTER_LEN: usize = 64 << 10;
pub(crate) const CLUSTER_BLOCKS: u64 = CLUSTER_BYTES / BLOCK_BYTES;
pub(crate) const NODE_LEN: usize = 4 << 10;
pub(crate) const HEAD_LEN: usize = 64;
pub(crate) const NODE_BITS: u32 = 9;
pub(crate) const NODE_WORDS: u64 = 1 << NODE_BITS;
pub(crate) const LEVELS: u32 = 6;

/// What a word leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordKind {
    /// Bytes of a cluster. A block has the same tag; the word's position tells the two apart.
    Run,
    /// Bytes of a block.
    Block,
    /// The 16 words of a cluster's blocks.
    Split,
    /// 512 words.
    Node,
}

impl WordKind {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Run => CLUSTER_BYTES,
            Self::Block => BLOCK_BYTES,
            Self::Split => CLUSTER_BLOCKS * 8,
            Self::Node => NODE_LEN as u64,
        }
    }

    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::Run | Self::Block => 1 << 1,
            Self::Split => 2 << 1,
            Self::Node => 3 << 1,
        }
    }
}

/// A word of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeWord(pub(crate) u64);

impl TreeWord {
    pub(crate) const FRESH: u64 = 1;
    pub(crate) const TAGS: u64 = 0x7f;

    pub(crate) const fn new(addr: GlobalAddr, kind: WordKind) -> Self {
        Self(addr.raw() | kind.bits())
    }

    pub(crate) const fn is_hole(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn is_fresh(self) -> bool {
        self.0 & Self::FRESH != 0
    }

    pub(crate) const fn settled(self) -> Self {
        Self(self.0 & !Self::FRESH)
    }

    /// `None`: a hole, or the mark of a mount that is freeing the object.
    pub(crate) const fn kind(self) -> Option<WordKind> {
        match self.0 & Self::TAGS & !Self::FRESH {
            2 => Some(WordKind::Run),
            4 => Some(WordKind::Split),
            6 => Some(WordKind::Node),
            _ => None,
        }
    }

    pub(crate) const fn addr(self) -> GlobalAddr {
        GlobalAddr::from_raw(self.0 & !Self::TAGS)
    }

    /// The mark of a mount that is freeing the object.
    pub(crate) const fn mark(token: u64) -> Self {
        Self((token & !Self::TAGS) | 0x40)
    }
}

/// An address `bytes` further on. It wraps; an access past the end of the object fails.
pub(crate) const fn plus(addr: GlobalAddr, bytes: u64) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw().wrapping_add(bytes))
}

/// Which word of the head leads to a cluster, and the cluster's index in that tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) level: u32,
    pub(crate) index: u64,
}

impl Branch {
    pub(crate) fn of(cluster: u64) -> Result<Self, FsError> {
        if cluster == 0 {
            return Ok(Self { level: 0, index: 0 });
        }
        let mut index = cluster - 1;
        for level in 1..=LEVELS {
            let span = 1_u64 << (NODE_BITS * level);
            if index < span {
                return Ok(Self { level, index });
            }
            index -= span;
        }
        Err(FsError::TooLarge)
    }

    /// The address of that word of the head.
    pub(crate) const fn word_addr(self, head: GlobalAddr) -> GlobalAddr {
        plus(head, 8 * (self.level as u64 + 1))
    }

    /// The first cluster in the tree of a level.
    pub(crate) const fn first_cluster(level: u32) -> u64 {
        let (mut first, mut at) = (0, 0);
        while at < level {
            first += 1 << (NODE_BITS * at);
            at += 1;
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_hang_at_the_tree_that_has_room_for_them() {
        let of = |cluster| Branch::of(cluster).unwrap();
        assert_eq!(of(0), Branch { level: 0, index: 0 });
        assert_eq!(of(1), Branch { level: 1, index: 0 });
        assert_eq!(of(512), Branch { level: 1, index: 511 });
        assert_eq!(of(513), Branch { level: 2, index: 0 });
        let last = (i64::MAX as u64) / CLUSTER_BYTES;
        assert!(of(last).level <= LEVELS);
        for level in 0..=LEVELS {
            assert_eq!(of(Branch::first_cluster(level)), Branch { level, index: 0 });
        }
    }

    #[test]
    fn words_keep_their_parts() {
        let addr = GlobalAddr::from_raw(0x1234_5680);
        for kind in [WordKind::Run, WordKind::Split, WordKind::Node] {
            let word = TreeWord::new(addr, kind);
            assert_eq!((word.kind(), word.addr(), word.is_fresh()), (Some(kind), addr, false));
            assert_eq!(TreeWord(word.0 | TreeWord::FRESH).settled(), word);
        }
        assert_eq!(TreeWord::mark(u64::MAX >> 1).kind(), None);
        assert_eq!(TreeWord(0).kind(), None);
    }
}
