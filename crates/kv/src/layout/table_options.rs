/// The layout of a table; fixed at its creation.
///
/// ```
/// let options = rackpool_kv::TableOptions { max_depth: 18, ..Default::default() };
/// assert_eq!(options.segment_bytes, 32 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The table grows to at most `2^max_depth` segments. The directory takes `8 * 2^max_depth`
    /// bytes, which must fit into a page. 0 to 18; default 16, which holds about 150 million
    /// entries in segments of 32 KiB.
    pub max_depth: u8,
    /// The size of a segment in bytes: a power of two from 256 to 1 MiB, at most a page; default 32
    /// KiB. One split copies one segment.
    pub segment_bytes: u64,
}

impl TableOptions {
    /// The largest [`max_depth`](Self::max_depth).
    pub const MAX_DEPTH: u8 = 18;

    /// The default options, reduced to the largest that pages of `page_bytes` bytes allow.
    ///
    /// ```
    /// use rackpool_kv::TableOptions;
    /// assert_eq!(TableOptions::for_pages(2 << 20), TableOptions::default());
    /// assert_eq!(TableOptions::for_pages(64 << 10).max_depth, 13);
    /// ```
    #[must_use]
    pub fn for_pages(page_bytes: u64) -> Self {
        let usual = Self::default();
        let entries = (page_bytes / 8).max(1);
        let depth = u8::try_from(entries.ilog2()).unwrap_or(usual.max_depth);
        Self {
            max_depth: depth.min(usual.max_depth),
            segment_bytes: usual.segment_bytes.min(page_bytes),
        }
    }
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { max_depth: 16, segment_bytes: 32 << 10 }
    }
}
