//! Finding the words of a file.

use std::collections::HashMap;
use std::sync::PoisonError;

use rackpool_client::GlobalAddr;

use crate::error::FsError;
use crate::format::word::{
    Branch, CLUSTER_BLOCKS, CLUSTER_BYTES, LEVELS, NODE_BITS, NODE_WORDS, TreeWord, WordKind, plus,
};
use crate::tree::link::InitialContents;
use crate::volume::Volume;
use crate::volume::number_map::Numbered;
use crate::volume::open_file::OpenFile;
use crate::volume_memory::VolumeMemory;

/// A stretch of a file that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) is_data: bool,
    /// The first offset behind the stretch.
    pub(crate) end: u64,
}

const DAMAGED: FsError = FsError::Damaged("the words of a file");

/// The most words of a kind that a mount caches for a file; beyond it the mount forgets them and
/// reads them again.
const MAX_SEEN: usize = 1 << 20;

fn keep(seen: &mut Numbered<u64, u64>, number: u64, word: TreeWord) {
    if seen.len() >= MAX_SEEN {
        seen.clear();
    }
    seen.insert(number, word.0);
}

impl<M: VolumeMemory> Volume<M> {
    /// Returns the node that a word leads to, or `None` for a hole.
    fn node(&self, word: TreeWord) -> Result<Option<GlobalAddr>, FsError> {
        match word.kind() {
            Some(WordKind::Node) => Ok(Some(word.addr())),
            None if word.is_hole() => Ok(None),
            // A killed mount was freeing the node, and its mark is not settled yet.
            None => Err(FsError::Busy),
            Some(_) => Err(DAMAGED),
        }
    }

    /// Returns the address of a cluster's word. Creates missing nodes on the way if `make` is set;
    /// else returns `None` if one is missing.
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
                word = self.link_word(at, WordKind::Node, InitialContents::Zeros)?.word();
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

    /// Returns the word of a cluster: a hole, a run, or a split cluster.
    pub(crate) fn cluster(
        &self,
        file: &OpenFile,
        head: GlobalAddr,
        cluster: u64,
    ) -> Result<TreeWord, FsError> {
        let seen = file.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = seen.clusters.get(&cluster) {
            return Ok(TreeWord(*word));
        }
        drop(seen);
        match self.cluster_word(file, head, cluster, false)? {
            Some(at) => self.see_cluster(file, cluster, self.word(at)?),
            None => Ok(TreeWord(0)),
        }
    }

    /// Caches the word of a cluster, after checking its kind.
    pub(crate) fn see_cluster(
        &self,
        file: &OpenFile,
        cluster: u64,
        word: TreeWord,
    ) -> Result<TreeWord, FsError> {
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

    /// The address of a block's word in a split cluster.
    pub(crate) const fn block_word(split: TreeWord, block: u64) -> GlobalAddr {
        plus(split.addr(), 8 * (block % CLUSTER_BLOCKS))
    }

    /// Returns the word of a block of a split cluster.
    pub(crate) fn block(
        &self,
        file: &OpenFile,
        split: TreeWord,
        block: u64,
    ) -> Result<TreeWord, FsError> {
        let seen = file.seen.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = seen.blocks.get(&block) {
            return Ok(TreeWord(*word));
        }
        drop(seen);
        self.see_block(file, block, self.word(Self::block_word(split, block))?)
    }

    /// Caches the word of a block, after checking its kind.
    pub(crate) fn see_block(
        &self,
        file: &OpenFile,
        block: u64,
        word: TreeWord,
    ) -> Result<TreeWord, FsError> {
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

    /// Returns the stretch that begins at `offset`, as far as one descent of the tree shows. `met`
    /// is shared by all descents of one tree: it detects two words that lead to one node.
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
                // The whole subtree is a hole.
                let bits = NODE_BITS * (level + 1);
                let last = first.saturating_add(((branch.index >> bits) + 1) << bits);
                return Ok(Extent { is_data: false, end: last.saturating_mul(CLUSTER_BYTES) });
            };
            // The tree, the level and the index of the node.
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
        let block = offset / crate::format::word::BLOCK_BYTES;
        let is_data = !self.block(file, word, block)?.is_hole();
        Ok(Extent { is_data, end: (block + 1).saturating_mul(crate::format::word::BLOCK_BYTES) })
    }
}

const _: () = assert!(LEVELS * NODE_BITS < u64::BITS);
