//! PageHints: where the words of files' contents begin. They lie in pages of 63, which are linked
//! from the superblock and stay as long as the volume does.
//!
//! ```text
//! page (4 KiB)  0 zero | 8 next page u64 | 16 zero | 64 63 heads
//! head (64 B)   0 inode u64, 0 if free | 8 word of the first cluster | 16 words of trees of level 1 to 6
//! ```

use std::collections::HashSet;

use rackpool_client::GlobalAddr;

use crate::attr::Ino;
use crate::error::FsError;
use crate::inode::Inode;
use crate::keys;
use crate::superblock::Superblock;
use crate::tree::{Fill, HEAD_LEN, Made, NODE_LEN, WordKind, plus};
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

/// What a mount knows of the pages.
#[derive(Debug, Default)]
pub(crate) struct PageHints {
    pages: Vec<GlobalAddr>,
    known: HashSet<u64>,
    /// PageHints that were free when they were looked at.
    free: Vec<GlobalAddr>,
    /// The next page to look for free heads in.
    next: usize,
    /// Pages made since the first was looked at.
    made: usize,
    /// The page that abandoned heads were last looked for in.
    scrubbed: Option<usize>,
}

const NEXT_PAGE: u64 = 8;

/// The heads in a page, with the inodes they belong to.
fn heads_in(page: GlobalAddr, bytes: &[u8]) -> impl Iterator<Item = (GlobalAddr, &[u8])> {
    let heads = bytes.chunks_exact(HEAD_LEN).enumerate().skip(1);
    heads.map(move |(number, head)| (plus(page, (number * HEAD_LEN) as u64), head))
}

fn first_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

impl<M: VolumeMemory> Volume<M> {
    fn read_page(&self, page: GlobalAddr) -> Result<Vec<u8>, FsError> {
        let mut bytes = vec![0; NODE_LEN];
        self.memory.read(page, &mut bytes).map_err(FsError::of_memory::<M>)?;
        Ok(bytes)
    }

    /// Learns of pages that were linked since.
    fn follow_pages(&self, heads: &mut PageHints) -> Result<GlobalAddr, FsError> {
        loop {
            let link = match heads.pages.last() {
                Some(page) => plus(*page, NEXT_PAGE),
                None => Superblock::heads_addr(self.superblock),
            };
            match self.word(link)? {
                word if word.kind() == Some(WordKind::Node) => {
                    if !heads.known.insert(word.addr().raw()) {
                        return Err(FsError::Damaged("the pages of heads"));
                    }
                    heads.pages.push(word.addr());
                }
                _ => return Ok(link),
            }
        }
    }

    /// Gets a head for a file that has none.
    pub(crate) fn new_head(&self, ino: Ino) -> Result<GlobalAddr, FsError> {
        let mut heads = lock(&self.heads);
        loop {
            while let Some(head) = heads.free.pop() {
                if self.swap(head, 0, ino.0)? {
                    return Ok(head);
                }
            }
            let link = self.follow_pages(&mut heads)?;
            if let Some(page) = heads.pages.get(heads.next).copied() {
                let bytes = self.read_page(page)?;
                heads.next += 1;
                let free = heads_in(page, &bytes).filter(|(_, head)| first_word(head) == 0);
                heads.free.extend(free.map(|(addr, _)| addr));
                continue;
            }
            if heads.made * 4 > heads.pages.len() {
                // Others may have freed some meanwhile.
                (heads.made, heads.next) = (0, 0);
                continue;
            }
            if let Made::New(_) = self.link_word(link, WordKind::Node, Fill::Zeros)? {
                heads.made += 1;
            }
        }
    }

    /// Whether a head is the inode's.
    pub(crate) fn is_head_of(&self, head: GlobalAddr, ino: Ino) -> Result<bool, FsError> {
        Ok(self.raw_word(head)? == ino.0)
    }

    /// Gives back a head that a change of its inode was to note there and has not.
    pub(crate) fn give_back_head<T>(
        &self,
        head: u64,
        ino: Ino,
        updated: &Result<(T, Inode), FsError>,
    ) {
        let is_unused = match updated {
            Ok((_, inode)) => inode.head != head,
            // The inode may have it, or get it still: whether it does is found out by a sweep.
            Err(FsError::Io(_)) => false,
            Err(_) => true,
        };
        if is_unused {
            // Should this fail, it is found to be abandoned.
            let _ = self.free_head(head, ino);
        }
    }

    /// Frees a head if it is the inode's, and its words are all 0.
    pub(crate) fn free_head(&self, head: u64, ino: Ino) -> Result<(), FsError> {
        let head = GlobalAddr::from_raw(head);
        if head.is_null() {
            return Ok(());
        }
        let mut bytes = [0; HEAD_LEN];
        self.memory.read(head, &mut bytes).map_err(FsError::of_memory::<M>)?;
        let is_empty = bytes[8..].iter().all(|byte| *byte == 0);
        if is_empty && self.swap(head, ino.0, 0)? {
            lock(&self.heads).free.push(head);
        }
        Ok(())
    }

    /// Frees heads that mounts have left that were killed at the wrong time: those of one page.
    pub(crate) fn scrub_heads(&self) -> Result<(), FsError> {
        let page = {
            let mut heads = lock(&self.heads);
            self.follow_pages(&mut heads)?;
            // Mounts that live for a few seconds come to all pages if each begins somewhere else.
            let [low, high, ..] = self.session.token.to_le_bytes();
            let start = u16::from_le_bytes([low, high]);
            let number = heads.scrubbed.map_or(usize::from(start), |last| last.wrapping_add(1));
            let Some(number) = number.checked_rem(heads.pages.len()) else { return Ok(()) };
            heads.scrubbed = Some(number);
            match heads.pages.get(number) {
                Some(page) => *page,
                None => return Ok(()),
            }
        };
        let mut result = Ok(());
        for (addr, head) in heads_in(page, &self.read_page(page)?) {
            let ino = Ino(first_word(head));
            if ino.0 != 0 && head[8..].iter().all(|byte| *byte == 0) {
                result = result.and(self.scrub_head(addr, ino));
            }
        }
        result
    }

    /// Frees a head without words if its inode does not have it.
    fn scrub_head(&self, head: GlobalAddr, ino: Ino) -> Result<(), FsError> {
        // An inode that is gone never comes back; one that has another head keeps that.
        let is_abandoned = match self.value(&keys::inode(ino))? {
            Some(value) => ![0, head.raw()].contains(&Inode::decode(&value)?.head),
            None => true,
        };
        if is_abandoned {
            self.swap(head, ino.0, 0)?;
        }
        Ok(())
    }
}
