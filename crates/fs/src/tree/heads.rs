//! Heads: the roots of the files' contents. They lie in pages of 63, which are linked from the
//! superblock and stay for the life of the volume.
//!
//! ```text
//! page (4 KiB)  0 zero | 8 next page u64 | 16 zero | 64 63 heads
//! head (64 B)   0 inode u64, 0 if free | 8 word of the first cluster |
//!               16 words of trees of level 1 to 6
//! ```

use rackpool_client::GlobalAddr;

use crate::attr::Ino;
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::keys;
use crate::format::superblock::VolumeSuperblock;
use crate::format::word::{HEAD_LEN, NODE_LEN, WordKind, plus};
use crate::tree::link::{InitialContents, LinkOutcome};
use crate::volume::page_hints::PageHints;
use crate::volume::transaction::Updated;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

const NEXT_PAGE: u64 = 8;

/// The heads in a page, with their addresses.
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

    /// Follows the links to pages that other mounts have added. Returns the address of the last
    /// link.
    fn follow_pages(&self, heads: &mut PageHints) -> Result<GlobalAddr, FsError> {
        loop {
            let link = match heads.pages.last() {
                Some(page) => plus(*page, NEXT_PAGE),
                None => VolumeSuperblock::heads_addr(self.superblock),
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

    /// Takes a free head for a file that has none.
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
                // Other mounts may have freed heads meanwhile.
                (heads.made, heads.next) = (0, 0);
                continue;
            }
            if let LinkOutcome::New(_) =
                self.link_word(link, WordKind::Node, InitialContents::Zeros)?
            {
                heads.made += 1;
            }
        }
    }

    /// Returns whether the head holds the inode's number.
    pub(crate) fn is_head_of(&self, head: GlobalAddr, ino: Ino) -> Result<bool, FsError> {
        Ok(self.raw_word(head)? == ino.0)
    }

    /// Frees a head that a change of its inode was to store there and did not.
    pub(crate) fn give_back_head<T>(
        &self,
        head: u64,
        ino: Ino,
        updated: &Result<Updated<T>, FsError>,
    ) {
        let is_unused = match updated {
            Ok(updated) => updated.inode.head != head,
            // The inode may have the head, or get it later; a sweep finds out.
            Err(FsError::Io(_)) => false,
            Err(_) => true,
        };
        if is_unused {
            // If this fails, a sweep finds the head abandoned.
            let _ = self.free_head(head, ino);
        }
    }

    /// Frees a head if it holds the inode's number and its words are all 0.
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

    /// Frees heads of one page that were abandoned: their mount was killed between taking them and
    /// storing them in the inode.
    pub(crate) fn scrub_heads(&self) -> Result<(), FsError> {
        let page = {
            let mut heads = lock(&self.heads);
            self.follow_pages(&mut heads)?;
            // Each mount begins at another page, so that mounts that live for only a few seconds
            // still cover all pages.
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
        // A deleted inode never comes back; an inode that has another head keeps that.
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
