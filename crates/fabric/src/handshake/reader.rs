use crate::FabricError;

/// The largest number of regions that a rack may export.
pub const MAX_EXPORTS: usize = 16;

/// Reads the numbers of a packet, little-endian, from the front.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Begins at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], FabricError> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(FabricError::misbehaved("its handshake packet is too short"));
        };
        self.0 = rest;
        Ok(*bytes)
    }

    /// The next number of two bytes.
    pub fn u16(&mut self) -> Result<u16, FabricError> {
        self.take().map(u16::from_le_bytes)
    }

    /// The next number of four bytes.
    pub fn u32(&mut self) -> Result<u32, FabricError> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next number of eight bytes.
    pub fn u64(&mut self) -> Result<u64, FabricError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Checks that the next `N` bytes are zero.
    pub fn zeroes<const N: usize>(&mut self) -> Result<(), FabricError> {
        if self.take::<N>()? == [0; N] {
            return Ok(());
        }
        Err(FabricError::misbehaved("its handshake packet has something where zeroes must be"))
    }

    /// The next number of four bytes, as a number of exported regions.
    pub fn export_count(&mut self) -> Result<usize, FabricError> {
        let count = self.u32()?;
        match usize::try_from(count) {
            Ok(count) if (1..=MAX_EXPORTS).contains(&count) => Ok(count),
            _ => Err(FabricError::misbehaved(format!("it exports {count} regions"))),
        }
    }

    /// The number and the lengths of exported regions, as [`encode_regions`] writes them.
    pub fn regions(&mut self) -> Result<Vec<u64>, FabricError> {
        let count = self.export_count()?;
        (0..count).map(|_| self.u64()).collect()
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Checks that no bytes are left.
    pub fn end(&self) -> Result<(), FabricError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(FabricError::misbehaved("its handshake packet is too long"))
    }
}

/// Encodes the number and the lengths of exported regions.
#[must_use]
pub fn encode_regions(regions: &[u64]) -> Vec<u8> {
    let count = u32::try_from(regions.len()).unwrap_or(0);
    let lens = regions.iter().flat_map(|len| len.to_le_bytes());
    count.to_le_bytes().into_iter().chain(lens).collect()
}
