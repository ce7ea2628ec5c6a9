//! Clearing contents: whole objects are freed, parts are overwritten with zeros.

use std::collections::HashSet;

use rackpool_client::{GlobalAddr, WriteRequest};

use crate::attr::Ino;
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::word::{
    BLOCK_BYTES, BLOCK_LEN, Branch, CLUSTER_BYTES, CLUSTER_LEN, LEVELS, NODE_BITS, NODE_LEN,
    TreeWord, WordKind, plus,
};
use crate::tree::link::ZEROS;
use crate::volume::Volume;
use crate::volume_memory::VolumeMemory;

/// The bytes of a file to clear; the end may be past 2^64.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u128,
    end: u128,
    /// No other mount has the file open, so memory may be freed.
    alone: bool,
}

impl Span {
    const fn covers(self, unit: TreeUnit) -> bool {
        self.alone && self.start <= unit.start && unit.start + unit.bytes() <= self.end
    }

    const fn touches(self, unit: TreeUnit) -> bool {
        self.start < unit.start + unit.bytes() && unit.start < self.end
    }
}

/// The part of a file that a word leads to.
#[derive(Clone, Copy, Debug)]
struct TreeUnit {
    at: GlobalAddr,
    start: u128,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// A tree of this many levels of nodes; 0: a cluster.
    Tree(u32),
    Block,
}

impl TreeUnit {
    const fn bytes(self) -> u128 {
        match self.shape {
            Shape::Tree(level) => (CLUSTER_BYTES as u128) << (NODE_BITS * level),
            Shape::Block => BLOCK_BYTES as u128,
        }
    }

    /// The units that the words in `bytes` lead to, without holes. `at` is the address of those
    /// words.
    fn parts(self, at: GlobalAddr, bytes: &[u8], shape: Shape) -> impl Iterator<Item = Self> {
        let words = bytes.as_chunks::<8>().0.iter().enumerate();
        words.filter(|(_, word)| **word != [0; 8]).map(move |(number, _)| {
            let number = number as u64;
            let mut part = Self { at: plus(at, 8 * number), start: self.start, shape };
            part.start += u128::from(number) * part.bytes();
            part
        })
    }
}

/// What a descent has met.
#[derive(Debug, Default)]
struct ClearProgress {
    /// Bytes freed.
    freed: u64,
    /// Nodes visited, to detect two words that lead to one node.
    nodes: HashSet<u64>,
}

impl<M: VolumeMemory> Volume<M> {
    /// Clears the bytes of a file from `start` up to `end` (`None`: all that follow). Frees whole
    /// objects if `alone`: no other mount has the file open. Returns the number of bytes freed.
    pub(crate) fn clear(
        &self,
        ino: Ino,
        head: GlobalAddr,
        start: u64,
        end: Option<u64>,
        alone: bool,
    ) -> Result<u64, FsError> {
        let mut met = ClearProgress::default();
        if head.is_null() {
            return Ok(met.freed);
        }
        if !self.is_head_of(head, ino)? {
            return Err(FsError::Damaged("a head"));
        }
        let span = Span { start: start.into(), end: end.map_or(u128::MAX, u128::from), alone };
        for level in 0..=LEVELS {
            let first = u128::from(Branch::first_cluster(level));
            let at = Branch { level, index: 0 }.word_addr(head);
            let start = first * u128::from(CLUSTER_BYTES);
            self.clear_unit(TreeUnit { at, start, shape: Shape::Tree(level) }, span, &mut met)?;
        }
        Ok(met.freed)
    }

    /// Frees all contents of an inode that no mount has open.
    pub(crate) fn free_contents(&self, ino: Ino, inode: &Inode) -> Result<(), FsError> {
        let head = GlobalAddr::from_raw(inode.head);
        // A head that belongs to another file is not freed; this inode can go without it.
        if head.is_null() || !self.is_head_of(head, ino)? {
            return Ok(());
        }
        self.clear(ino, head, 0, None, true).map(drop)
    }

    fn clear_unit(
        &self,
        unit: TreeUnit,
        span: Span,
        met: &mut ClearProgress,
    ) -> Result<(), FsError> {
        if !span.touches(unit) {
            return Ok(());
        }
        let word = self.word(unit.at)?;
        if word.is_hole() {
            return Ok(());
        }
        let parts = match (word.kind(), unit.shape) {
            // A killed mount's mark, which its daemon settles.
            (None, _) => return Err(FsError::Busy),
            (Some(WordKind::Node), Shape::Tree(level @ 1..)) => {
                if !met.nodes.insert(word.addr().raw()) {
                    return Err(FsError::Damaged("the words of a file"));
                }
                Some((NODE_LEN / 8, Shape::Tree(level - 1)))
            }
            (Some(WordKind::Split), Shape::Tree(0)) => {
                Some((CLUSTER_LEN / BLOCK_LEN, Shape::Block))
            }
            (Some(WordKind::Run), Shape::Tree(0) | Shape::Block) => None,
            _ => return Err(FsError::Damaged("the words of a file")),
        };
        match parts {
            Some((count, shape)) => {
                let mut bytes = vec![0; 8 * count];
                let read = self.memory.read(word.addr(), &mut bytes);
                read.map_err(FsError::of_memory::<M>)?;
                for part in unit.parts(word.addr(), &bytes, shape) {
                    self.clear_unit(part, span, met)?;
                }
            }
            None if !span.covers(unit) => return self.zero(word, unit, span),
            None => {}
        }
        if span.covers(unit) {
            self.unlink_word(unit.at, word)?;
            if parts.is_none() {
                met.freed = met.freed.saturating_add(u64::try_from(unit.bytes()).unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Overwrites the intersection of a unit and a span with zeros.
    fn zero(&self, word: TreeWord, unit: TreeUnit, span: Span) -> Result<(), FsError> {
        let from = span.start.max(unit.start) - unit.start;
        let to = span.end.min(unit.start + unit.bytes()) - unit.start;
        let from = usize::try_from(from).unwrap_or(0);
        let len = usize::try_from(to).unwrap_or(0).saturating_sub(from).min(ZEROS.len());
        if len == 0 {
            return Ok(());
        }
        let write = WriteRequest { addr: plus(word.addr(), from as u64), from: &ZEROS[..len] };
        self.memory.write_batch(&[write]).map_err(FsError::of_memory::<M>)
    }
}
