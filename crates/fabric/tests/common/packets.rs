//! The packets of a handshake, after docs/design/fabric.md.

use rackpool_fabric::conformance::pair::ok;

/// `magic | kind | version | length | body`.
pub(crate) fn packet(magic: &[u8; 8], kind: u32, version: u32, body: &[u8]) -> Vec<u8> {
    let len = ok(u32::try_from(body.len()));
    let numbers = [kind, version, len].map(u32::to_le_bytes).concat();
    [&magic[..], &numbers, body].concat()
}

/// A hello of rack 66.
pub(crate) fn hello(magic: &[u8; 8], version: u32, has_key: bool) -> Vec<u8> {
    let mut body = [9; 48];
    body[..8].copy_from_slice(&[66, 0, u8::from(has_key), 0, 0, 0, 0, 0]);
    body[8..16].copy_from_slice(&5_u64.to_le_bytes());
    packet(magic, 1, version, &body)
}

/// The proof of a rack without a key.
pub(crate) fn proof(magic: &[u8; 8]) -> Vec<u8> {
    packet(magic, 3, 2, &[0; 32])
}

/// An offer of a rack without a key.
pub(crate) fn offer(magic: &[u8; 8], content: &[u8]) -> Vec<u8> {
    packet(magic, 4, 2, &[&[0; 32], content].concat())
}

/// Bytes of a hello and of a proof.
pub(crate) const HELLO_AND_PROOF: usize = 68 + 52;
