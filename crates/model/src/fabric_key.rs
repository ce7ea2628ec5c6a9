use core::fmt;

/// The pool's secret. A rack that proves possession of it in the fabric handshake may use the
/// memory of other racks over a network.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, PartialEq, Eq)]
pub struct FabricKey([u8; 32]);

impl FabricKey {
    /// Makes a key of 32 bytes, which the caller has drawn at random.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, for the handshake and the metadata connection. They must not be logged or
    /// shown.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for FabricKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(std::format!("{:?}", FabricKey::new([7; 32])), "FabricKey(secret)");
    }
}
