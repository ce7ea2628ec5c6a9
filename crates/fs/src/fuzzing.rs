//! The records that mounts read and other mounts wrote, for `rackpool-fuzz`.

use crate::format::acl::Acl;
use crate::format::directory_node::{TrieNode, encode_leaf};
use crate::format::file_locks::Locks;
use crate::format::inode::Inode;
use crate::format::orphans::{encode_orphans, orphans_in};
use crate::format::session::Session;
use crate::format::superblock::VolumeSuperblock;

/// Decodes a record of the kind that its first byte selects. It is either refused or equal after
/// encoding and decoding it again.
///
/// # Panics
/// If a decoded record differs after encoding and decoding.
pub fn record(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => inode(bytes),
        1 => node(bytes),
        2 => superblock(bytes),
        3 => sessions(bytes),
        4 => orphans(bytes),
        5 => locks(bytes),
        _ => acl(bytes),
    }
}

fn inode(bytes: &[u8]) {
    let Ok(mut inode) = Inode::decode(bytes) else { return };
    // `encode` drops all other bits of the mode.
    inode.mode &= 0o7777;
    assert_eq!(Inode::decode(&inode.encode()).ok().as_ref(), Some(&inode));
    let mut contents = Inode::decode_contents(bytes).expect("a part of what can be read");
    contents.mode &= 0o7777;
    contents.opens.clone_from(&inode.opens);
    assert_eq!(contents, inode);
}

fn node(bytes: &[u8]) {
    let Ok(TrieNode::Leaf(entries)) = TrieNode::decode(Some(bytes)) else { return };
    let again = encode_leaf(&entries);
    assert_eq!(again.as_deref().unwrap_or(&[0]), bytes);
}

fn superblock(bytes: &[u8]) {
    let Some(fixed) = bytes.first_chunk::<{ VolumeSuperblock::FIXED }>() else { return };
    let Ok(superblock) = VolumeSuperblock::decode(fixed) else { return };
    let again = superblock.encode(superblock.table);
    assert_eq!(&again[..VolumeSuperblock::FIXED], fixed);
}

fn sessions(bytes: &[u8]) {
    let Ok(sessions) = Session::decode_all(bytes) else { return };
    let mut again = Vec::new();
    sessions.into_iter().for_each(|session| session.encode(&mut again));
    assert_eq!(again, bytes);
}

fn orphans(bytes: &[u8]) {
    let orphans = orphans_in(Some(bytes));
    let again = encode_orphans(&orphans).unwrap_or_default();
    assert_eq!(again, bytes[..bytes.len() / 8 * 8]);
}

fn locks(bytes: &[u8]) {
    let Ok(locks) = Locks::decode(Some(bytes)) else { return };
    // A record that is too large is not encoded.
    let Ok(Some(again)) = locks.encode() else { return };
    assert_eq!(Locks::decode(Some(&again)).ok(), Some(locks));
}

fn acl(bytes: &[u8]) {
    let Some(acl) = Acl::decode(bytes) else { return };
    // Ids of entries that have none are not kept.
    assert_eq!(Acl::decode(&acl.encode()), Some(acl));
}
