//! Finding the words of a file.

use std::collections::HashMap;
use std::sync::PoisonError;

use rackpool_client::GlobalAddr;

use super::{
    Branch, CLUSTER_BLOCKS, CLUSTER_BYTES, Fill, LEVELS, NODE_BITS, NODE_WORDS, Word, WordKind,
    plus,
};
use crate::error::FsError;
use crate::file::OpenFile;
use crate::numbered::Numbered;
use crate::volume::Volume;
use crate::volume_memory::VolumeMemory;

/// A stretch of a file that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) is_data: bool,
    /// The first byte behind it.
    pub(crate) end: u64,
}

const DAMAGED: FsError = FsError::Damaged("the words of a file");

/// So many words of a kind are remembered of a file; then they are forgotten and read again.
const MAX_SEEN: usize = 1 << 20;

fn keep(seen: &mut Numbered<u64, u64>, number: u64, word: Word) {
    if seen.len() >= MAX_SEEN {
        seen.clear();
    }
    seen.insert(number, word.0);
}

impl<M: VolumeMemory> Volume<M> {
    /// A word that must be a node, or a hole.
    fn node(&self, word: Word) -> Result<Option<GlobalAddr>, FsError> {
        match word.kind() {
            Some(WordKind::Node) => Ok(Some(word.addr())),
            None if word.is_hole() => Ok(None),
            // Somebody who was killed freed it, and that is not settled yet.
            None => Err(FsError::Busy),
            Some(_) => Err(DAMAGED),
        }
    }

    /// Where the word of a cluster is; nodes on the way are made if `make` says so. `None`: there
    /// is no node for it.
    pub(crate) fn cluster_word(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        cluster: u64,
        make: bool,
    ) -> Result<Option<GlobalAddr>, FsError> {
        let branch = Branch::of(cluster)?;
        let top = branch.word_addr(head);
        if branch.level == 0 {
            return Ok(Some(top));
        }
        let lowest = (branch.level, branch.index >> NODE_BITS);
        let digit = |level: u32| 8 * ((branch.index >> (NODE_BITS * level)) & (NODE_WORDS - 1));
        let seen = file.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = seen.nodes.get(&lowest) {
            return Ok(Some(plus(GlobalAddr::from_raw(*node), digit(0))));
        }
        drop(seen);
        let mut at = top;
        for level in (0..branch.level).rev() {
            let mut word = self.word(at)?;
            if word.is_hole() && make {
                word = self.link_word(at, WordKind::Node, Fill::Zeros)?.word();
            }
            let Some(node) = self.node(word)? else { return Ok(None) };
            if level == 0 {
                let mut seen = file.seen.write().unwrap_or_else(PoisonError::into_inner);
                seen.nodes.insert(lowest, node.raw());
            }
            at = plus(node, digit(level));
        }
        Ok(Some(at))
    }

    /// The word of a cluster: a hole, a run, or a split.
    pub(crate) fn cluster(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        cluster: u64,
    ) -> Result<Word, FsError> {
        let seen = file.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = seen.clusters.get(&cluster) {
            return Ok(Word(*word));
        }
        drop(seen);
        match self.cluster_word(file, head, cluster, false)? {
            Some(at) => self.see_cluster(file, cluster, self.word(at)?),
            None => Ok(Word(0)),
        }
    }

    /// Notes the word of a cluster, after a check.
    pub(crate) fn see_cluster(
        &self,
        file: &OpenFile,
        cluster: u64,
        word: Word,
    ) -> Result<Word, FsError> {
        match word.kind() {
            Some(WordKind::Run | WordKind::Split) => {
                let mut seen = file.seen.write().unwrap_or_else(PoisonError::into_inner);
                keep(&mut seen.clusters, cluster, word);
                Ok(word)
            }
            None if word.is_hole() => Ok(word),
            None => Err(FsError::Busy),
            Some(_) => Err(DAMAGED),
        }
    }

    /// Where the word of a block is, in a split cluster.
    pub(crate) const fn block_word(split: Word, block: u64) -> GlobalAddr {
        plus(split.addr(), 8 * (block % CLUSTER_BLOCKS))
    }

    /// The word of a block of a split cluster.
    pub(crate) fn block(&self, file: &OpenFile, split: Word, block: u64) -> Result<Word, FsError> {
        let seen = file.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = seen.blocks.get(&block) {
            return Ok(Word(*word));
        }
        drop(seen);
        self.see_block(file, block, self.word(Self::block_word(split, block))?)
    }

    /// Notes the word of a block, after a check.
    pub(crate) fn see_block(
        &self,
        file: &OpenFile,
        block: u64,
        word: Word,
    ) -> Result<Word, FsError> {
        match word.kind() {
            Some(WordKind::Run) => {
                let mut seen = file.seen.write().unwrap_or_else(PoisonError::into_inner);
                keep(&mut seen.blocks, block, word);
                Ok(word)
            }
            None if word.is_hole() => Ok(word),
            None => Err(FsError::Busy),
            Some(_) => Err(DAMAGED),
        }
    }

    /// The stretch that begins at an offset: as far as one look tells. `met` is of all looks at one
    /// tree: no two words lead to one node.
    pub(crate) fn extent(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        offset: u64,
        met: &mut HashMap<u64, (u32, u64)>,
    ) -> Result<Extent, FsError> {
        let cluster = offset / CLUSTER_BYTES;
        let branch = Branch::of(cluster)?;
        let mut at = branch.word_addr(head);
        let first = Branch::first_cluster(branch.level);
        for level in (0..branch.level).rev() {
            let Some(node) = self.node(self.word(at)?)? else {
                // All that hangs there.
                let bits = NODE_BITS * (level + 1);
                let last = first.saturating_add(((branch.index >> bits) + 1) << bits);
                return Ok(Extent { is_data: false, end: last.saturating_mul(CLUSTER_BYTES) });
            };
            // In which of its level's trees, and where.
            let place = (branch.level << 8 | level, branch.index >> (NODE_BITS * (level + 1)));
            if *met.entry(node.raw()).or_insert(place) != place {
                return Err(DAMAGED);
            }
            at = plus(node, 8 * ((branch.index >> (NODE_BITS * level)) & (NODE_WORDS - 1)));
        }
        let word = self.cluster(file, head, cluster)?;
        let end = cluster.saturating_add(1).saturating_mul(CLUSTER_BYTES);
        if word.kind() != Some(WordKind::Split) {
            return Ok(Extent { is_data: !word.is_hole(), end });
        }
        let block = offset / super::BLOCK_BYTES;
        let is_data = !self.block(file, word, block)?.is_hole();
        Ok(Extent { is_data, end: (block + 1).saturating_mul(super::BLOCK_BYTES) })
    }
}

const _: () = assert!(LEVELS * NODE_BITS < u64::BITS);
