//! Read-only enumeration of the objects of a volume.

use std::collections::HashSet;

use rackpool_client::GlobalAddr;
use rackpool_kv::{KvError, Memory, Table};

use crate::format::superblock::{VolumeSuperblock, table_of};
use crate::format::word::{HEAD_LEN, NODE_LEN, TreeWord, WordKind, plus};

/// Calls `visit` with each object of the volume whose superblock is at `addr`: the superblock, its
/// table, heads and contents of files. It only reads, and skips what it cannot read; returns the
/// number of parts skipped. While mounts use the volume it may miss objects and report some that
/// are already free.
///
/// # Errors
/// [`KvError`] if there is no volume, or if the superblock or the header of its table could not be
/// read.
pub fn walk_volume<M: Memory + Clone>(
    memory: &M,
    addr: GlobalAddr,
    mut visit: impl FnMut(GlobalAddr),
) -> Result<u64, KvError<M::Error>> {
    visit(addr);
    let mut contents = Contents { memory, seen: HashSet::new(), unread: 0 };
    match table_of(memory, addr)? {
        Some(table) => {
            let walk = Table::walk(memory.clone(), table, |_, addr, _| visit(addr))?;
            contents.unread = walk.unread;
        }
        None => contents.follow_begun(VolumeSuperblock::place_addr(addr), &mut visit),
    }
    contents.follow_heads(VolumeSuperblock::heads_addr(addr), &mut visit);
    Ok(contents.unread)
}

/// A walk along the words that lead to contents.
struct Contents<'a, M> {
    memory: &'a M,
    /// Objects visited: damaged words may lead back.
    seen: HashSet<u64>,
    unread: u64,
}

impl<M: Memory + Clone> Contents<'_, M> {
    /// Visits the table of an incomplete volume, if it has one.
    fn follow_begun(&mut self, place: GlobalAddr, visit: &mut impl FnMut(GlobalAddr)) {
        let [TreeWord(table)] = self.words(place).unwrap_or([TreeWord(0)]);
        if table != 0 {
            let table = GlobalAddr::from_raw(table);
            visit(table);
            match Table::walk(self.memory.clone(), table, |_, addr, _| visit(addr)) {
                Ok(walk) => self.unread += walk.unread,
                Err(_) => self.unread += 1,
            }
        }
    }

    fn follow_heads(&mut self, first: GlobalAddr, visit: &mut impl FnMut(GlobalAddr)) {
        let mut link = first;
        loop {
            let [word] = self.words(link).unwrap_or([TreeWord(0)]);
            let page = word.addr();
            if word.kind() != Some(WordKind::Node) || !self.seen.insert(page.raw()) {
                return;
            }
            visit(page);
            let Some(words) = self.words::<{ NODE_LEN / 8 }>(page) else { return };
            for head in words.chunks_exact(HEAD_LEN / 8).skip(1) {
                // The first word is the inode number.
                self.follow(head[1..].to_vec(), visit);
            }
            link = plus(page, 8);
        }
    }

    /// Visits all objects that these words lead to.
    fn follow(&mut self, mut words: Vec<TreeWord>, visit: &mut impl FnMut(GlobalAddr)) {
        while let Some(word) = words.pop() {
            let Some(kind) = word.kind() else { continue };
            if !self.seen.insert(word.addr().raw()) {
                continue;
            }
            visit(word.addr());
            let below = match kind {
                WordKind::Run | WordKind::Block => continue,
                WordKind::Split => self.words::<16>(word.addr()).map(Vec::from),
                WordKind::Node => self.words::<{ NODE_LEN / 8 }>(word.addr()).map(Vec::from),
            };
            // The first word of an object that was just linked may be its owner word.
            let skipped = usize::from(word.is_fresh());
            words.extend(below.into_iter().flatten().skip(skipped));
        }
    }

    /// Reads the words at an address. If they cannot be read, counts one unread part and returns
    /// `None`.
    fn words<const COUNT: usize>(&mut self, addr: GlobalAddr) -> Option<[TreeWord; COUNT]> {
        let mut bytes = vec![0; COUNT * 8];
        if self.memory.read(addr, &mut bytes).is_err() {
            self.unread += 1;
            return None;
        }
        let mut words = [TreeWord(0); COUNT];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = TreeWord(u64::from_le_bytes(*bytes));
        }
        Some(words)
    }
}
