use std::fmt;

use super::Malformed;

/// The id of an object: 20 bytes, which clients choose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; Self::BYTES]);

impl ObjectId {
    /// The length of an id.
    pub const BYTES: usize = 20;

    /// The id in these bytes.
    ///
    /// # Errors
    /// If they are not 20 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        bytes.try_into().map(Self).map_err(|_| Malformed::IdLength)
    }
}

/// In hexadecimal, as Plasma's clients print ids.
impl fmt::Display for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ObjectId({self})")
    }
}
