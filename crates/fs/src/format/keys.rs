//! The keys of a volume's table; numbers in them are big-endian.

use crate::attr::Ino;
use crate::format::session::Session;

/// Number of lists of orphans: inodes without a name that are not freed yet.
pub(crate) const ORPHAN_LISTS: u8 = 16;

/// Number of lists in which a mount records the files of which it has locks.
pub(crate) const LOCK_LISTS: u8 = 16;

/// The counter of inode numbers.
pub(crate) const INOS: &[u8] = b"n";
/// The list of mounts.
pub(crate) const MOUNTS: &[u8] = b"m";
/// The counter of moves of directories to another parent.
pub(crate) const MOVES: &[u8] = b"r";

/// An inode.
pub(crate) fn inode(ino: Ino) -> [u8; 9] {
    let [a, b, c, d, e, f, g, h] = ino.0.to_be_bytes();
    [b'i', a, b, c, d, e, f, g, h]
}

/// A node of a directory: it covers the names whose hashes begin with `prefix`, of `depth` digits.
pub(crate) fn node(directory: Ino, depth: u8, prefix: u64) -> [u8; 18] {
    let mut key = [0; 18];
    key[0] = b'd';
    key[1..9].copy_from_slice(&directory.0.to_be_bytes());
    key[9] = depth;
    key[10..].copy_from_slice(&prefix.to_be_bytes());
    key
}

/// The list of orphans for an inode.
pub(crate) fn orphans_of(ino: Ino) -> [u8; 2] {
    let [.., last] = ino.0.to_be_bytes();
    orphan_list(last % ORPHAN_LISTS)
}

/// Whether a key is a list of orphans.
pub(crate) const fn is_orphan_list(key: &[u8]) -> bool {
    matches!(key, [b'o', _])
}

/// One of the lists of orphans.
pub(crate) const fn orphan_list(number: u8) -> [u8; 2] {
    [b'o', number]
}

/// The locks of a file.
pub(crate) fn locks(ino: Ino) -> [u8; 9] {
    let mut key = inode(ino);
    key[0] = b'l';
    key
}

/// A mount's list of files with locks that a file belongs to.
pub(crate) fn locked_by(session: Session, ino: Ino) -> [u8; 10] {
    let [.., last] = ino.0.to_be_bytes();
    lock_list(session, last % LOCK_LISTS)
}

/// One of a mount's lists of files with locks.
pub(crate) fn lock_list(session: Session, number: u8) -> [u8; 10] {
    let [a, b, c, d, e, f, g, h] = session.token.to_be_bytes();
    [b'k', a, b, c, d, e, f, g, h, number]
}
