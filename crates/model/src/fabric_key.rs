use core::fmt;

/// The secret of a pool: racks that prove to have it may use each other's memory over a network.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, PartialEq, Eq)]
pub struct FabricKey([u8; 32]);

impl FabricKey {
    /// A key of 32 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, which nobody else shall see.
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
