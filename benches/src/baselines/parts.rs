//! Memory that lies at several homes, a part each.

use super::{AccessPath, Setting};

/// A client's paths to all parts. Each part has the same number of bytes.
pub(super) struct Parts<P> {
    parts: Vec<P>,
    bytes: u64,
}

/// Bytes of a home's part of the memory, in whole pages of 4 KiB.
pub(super) const fn part_bytes(setting: &Setting) -> u64 {
    setting.bytes.div_ceil(setting.homes as u64).next_multiple_of(4096)
}

impl<P: AccessPath> Parts<P> {
    /// Makes a client of the parts that `part` returns by number.
    pub(super) fn new<T>(
        setting: &Setting,
        homes: &[T],
        part: impl Fn(&T) -> anyhow::Result<P>,
    ) -> anyhow::Result<Self> {
        let parts = homes.iter().map(part).collect::<anyhow::Result<_>>()?;
        Ok(Self { parts, bytes: part_bytes(setting) })
    }

    fn part(&mut self, offset: u64) -> (&mut P, u64) {
        let number = usize::try_from(offset / self.bytes).unwrap_or(usize::MAX);
        let last = self.parts.len() - 1;
        (&mut self.parts[number.min(last)], offset % self.bytes)
    }
}

impl<P: AccessPath> AccessPath for Parts<P> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let (part, offset) = self.part(offset);
        part.read(offset, into)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.parts.iter_mut().try_for_each(P::finish)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        let (part, offset) = self.part(offset);
        part.write(offset, from)
    }
}
