//! Reading directories.

use crate::attr::{FileType, Ino, ReadDirEntry};
use crate::error::FsError;
use crate::format::directory_node::{HASH_BITS, TrieNode};
use crate::namespace::directory::{FoundLeaf, hash_at};
use crate::volume::Volume;
use crate::volume_memory::VolumeMemory;

const SELF: u64 = 1;
const PARENT: u64 = 2;
/// The cookie of an entry is its position plus this.
const FIRST: u64 = 3;

impl<M: VolumeMemory> Volume<M> {
    /// Calls `visit` with the entries of a directory behind the one with this cookie (0: from the
    /// beginning), `.` and `..` first, until `visit` returns false. An entry that exists throughout
    /// is visited once, whatever else is added or removed; the order is that of hashes.
    pub fn read_dir(
        &self,
        ino: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(ReadDirEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        if inode.kind != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        let dots = [(SELF, &b"."[..], ino), (PARENT, b"..", inode.parent)];
        for (number, name, ino) in dots.into_iter().filter(|(number, ..)| *number > cookie) {
            if !visit(ReadDirEntry { name, ino, kind: FileType::Directory, cookie: number }) {
                return Ok(());
            }
        }
        if inode.entries == 0 {
            return Ok(());
        }
        // The first position that was not visited yet.
        let next = cookie.saturating_add(1).saturating_sub(FIRST);
        let mut hash = hash_at(next);
        while hash < 1 << HASH_BITS {
            let FoundLeaf { place, value } =
                self.find_leaf(ino, hash, |key| Ok((self.value(key)?, true)))?;
            let TrieNode::Leaf(entries) = TrieNode::decode(value.as_deref())? else {
                return Err(FsError::Damaged("a directory"));
            };
            for entry in entries.iter().filter(|entry| entry.position >= next) {
                let cookie = entry.position.saturating_add(FIRST);
                if !visit(ReadDirEntry {
                    name: &entry.name,
                    ino: entry.ino,
                    kind: entry.kind,
                    cookie,
                }) {
                    return Ok(());
                }
            }
            hash = place.end();
        }
        Ok(())
    }
}
