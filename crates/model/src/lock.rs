use core::ops::Range;

use crate::{ClientId, PageId, PageSize};

/// Bytes of a line, the unit of locking: a cache line.
pub const LOCK_LINE_BYTES: u64 = 64;
/// The most lines of one lock.
pub const MAX_LOCK_LINES: u32 = 64;
/// Number of lock words of a rack.
pub const LOCK_WORDS: u32 = 1 << WORD_BITS;
/// Number of claims of a rack for locks that others hold: its daemon answers for them.
pub const FOREIGN_CLAIMS: u32 = 1 << 14;
/// Number of claims of a thread.
pub const CLAIMS: u8 = 1 << CLAIM_BITS;

const WORD_BITS: u32 = 16;
const CLAIM_BITS: u32 = 5;
const THREAD_BITS: u32 = 9;

/// What a lock permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// Any number of readers hold the lock at the same time.
    Read,
    /// One writer holds the lock.
    Write,
}

/// One thread's claim of a lock: the place of the claim in the client's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// The client.
    pub client: ClientId,
    /// The thread, less than 512.
    pub thread: u16,
    /// The index of the claim in the thread's slot, less than [`CLAIMS`].
    pub index: u8,
}

/// Lines of one page and the mode in which a thread holds or acquires their lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockClaim {
    page: PageId,
    first: u32,
    lines: u32,
    mode: LockMode,
}

/// The index of a lock word in a rack's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockWordIndex(u16);

/// A lock word: which claims of its lines may be held.
///
/// ```text
///  63        62       61      60   46 45    14 13     5 4     0
/// +---------+--------+-------+-------+--------+--------+-------+
/// | managed | shared | named |   0   | client | thread | claim |
/// +---------+--------+-------+-------+--------+--------+-------+
/// ```
///
/// ```
/// use rackpool_model::{ClaimId, ClientId, LockMode, LockWord};
///
/// let claim = ClaimId { client: ClientId(7), thread: 3, index: 1 };
/// let word = LockWord::named(claim, LockMode::Write);
/// assert_eq!(word.claim(), Some(claim));
/// assert!(!word.is_shared());
/// assert!(LockWord::FREE.claim().is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord(u64);

impl LockClaim {
    const PRESENT: u64 = 1 << 63;
    const WRITE: u64 = 1 << 62;
    const LINES_SHIFT: u32 = 56;
    const FIRST_SHIFT: u32 = 32;
    const FIRST_MASK: u64 = 0xff_ffff;

    /// A claim of the lines that contain `len` bytes from `offset` on. Returns `None` if `len` is
    /// 0, if the lines are not in one page, or if they are more than [`MAX_LOCK_LINES`].
    #[must_use]
    pub fn covering(
        page: PageId,
        offset: u64,
        len: u64,
        page_size: PageSize,
        mode: LockMode,
    ) -> Option<Self> {
        let last = offset.checked_add(len.checked_sub(1)?)?;
        if last >= page_size.bytes() {
            return None;
        }
        let first = offset / LOCK_LINE_BYTES;
        let lines = last / LOCK_LINE_BYTES - first + 1;
        Self::of_lines(page, u32::try_from(first).ok()?, u32::try_from(lines).ok()?, mode)
    }

    /// A claim of `lines` lines from line `first` of a page on.
    #[must_use]
    pub fn of_lines(page: PageId, first: u32, lines: u32, mode: LockMode) -> Option<Self> {
        let is_valid = (1..=MAX_LOCK_LINES).contains(&lines)
            && u64::from(first) + u64::from(lines) <= Self::FIRST_MASK + 1;
        is_valid.then_some(Self { page, first, lines, mode })
    }

    /// The page.
    #[must_use]
    pub const fn page(self) -> PageId {
        self.page
    }

    /// The mode.
    #[must_use]
    pub const fn mode(self) -> LockMode {
        self.mode
    }

    /// The first line in the page.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.first
    }

    /// The number of lines.
    #[must_use]
    pub const fn lines(self) -> u32 {
        self.lines
    }

    /// Offset in the page of the first byte.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.first as u64 * LOCK_LINE_BYTES
    }

    /// Number of bytes of the lines.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.lines as u64 * LOCK_LINE_BYTES
    }

    /// Returns true if `len` bytes at `offset` of the page lie within the lines.
    #[must_use]
    pub const fn covers(self, offset: u64, len: u64) -> bool {
        match offset.checked_sub(self.offset()) {
            Some(within) => within <= self.bytes() && len <= self.bytes() - within,
            None => false,
        }
    }

    /// Returns true if each line of `other` is one of this claim.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.page.0 == other.page.0 && self.covers(other.offset(), other.bytes())
    }

    /// Claims of the lines that `other` does not have, in the same mode: those before and those
    /// after.
    pub fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let end = self.first + self.lines;
        let before = other.first.clamp(self.first, end) - self.first;
        let after = end - (other.first + other.lines).clamp(self.first, end);
        let parts = [(self.first, before), (end - after, after)];
        parts
            .into_iter()
            .filter_map(move |(first, lines)| Self::of_lines(self.page, first, lines, self.mode))
    }

    /// Returns true if both claims have a line in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.page.0 == other.page.0
            && self.first < other.first + other.lines
            && other.first < self.first + self.lines
    }

    /// Returns true if both claims can't be held at the same time.
    #[must_use]
    pub const fn conflicts(self, other: Self) -> bool {
        let reads = matches!((self.mode, other.mode), (LockMode::Read, LockMode::Read));
        !reads && self.overlaps(other)
    }

    /// The lock words of the lines. A word may occur more than once.
    pub fn words(self) -> impl Iterator<Item = LockWordIndex> {
        (self.first..self.first + self.lines).map(move |line| LockWordIndex::of(self.page, line))
    }

    /// The lock word of the only line; `None` if there are several lines.
    #[inline]
    #[must_use]
    pub const fn only_word(self) -> Option<LockWordIndex> {
        if self.lines == 1 { Some(LockWordIndex::of(self.page, self.first)) } else { None }
    }

    /// The claim as a word, never 0.
    #[inline]
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        let write = match self.mode {
            LockMode::Read => 0,
            LockMode::Write => Self::WRITE,
        };
        Self::PRESENT
            | write
            | (self.lines as u64 - 1) << Self::LINES_SHIFT
            | (self.first as u64) << Self::FIRST_SHIFT
            | self.page.0 as u64
    }

    /// The claim that a word holds; `None` for 0 and for words that no claim has.
    #[must_use]
    pub fn from_raw(raw: u64) -> Option<Self> {
        if raw & Self::PRESENT == 0 {
            return None;
        }
        let mode = if raw & Self::WRITE == 0 { LockMode::Read } else { LockMode::Write };
        let lines = u32::try_from(raw >> Self::LINES_SHIFT & 0x3f).ok()? + 1;
        let first = u32::try_from(raw >> Self::FIRST_SHIFT & Self::FIRST_MASK).ok()?;
        let page = PageId(u32::try_from(raw & u64::from(u32::MAX)).ok()?);
        Self::of_lines(page, first, lines, mode)
    }
}

/// The runs of consecutive bytes of a line whose bits are set.
pub fn byte_runs(bytes: u64) -> impl Iterator<Item = Range<u32>> {
    let mut from = 0;
    core::iter::from_fn(move || {
        let left = bytes.checked_shr(from).filter(|left| *left != 0)?;
        let start = from + left.trailing_zeros();
        from = start + (bytes >> start).trailing_ones();
        Some(start..from)
    })
}

impl LockWordIndex {
    /// The lock word of a line. Neighbouring lines have words in different cache lines.
    #[inline]
    #[must_use]
    pub const fn of(page: PageId, line: u32) -> Self {
        // Multiplicative hashing with 2^64 divided by the golden ratio (Knuth, volume 3, 6.4).
        let key = (page.0 as u64) << 24 | line as u64;
        Self((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - WORD_BITS)) as u16)
    }

    /// The index of a word of the table; `None` if there is no such word.
    #[must_use]
    pub fn new(index: u32) -> Option<Self> {
        u16::try_from(index).ok().map(Self)
    }

    /// The index as a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl LockWord {
    /// No claim of the word's lines is held.
    pub const FREE: Self = Self(0);
    /// Every claim for reading may be held.
    pub const SHARED: Self = Self(1 << 62);
    /// The daemon knows the claims.
    pub const MANAGED: Self = Self(1 << 63);

    const NAMED: u64 = 1 << 61;

    /// Only this claim may be held.
    #[inline]
    #[must_use]
    pub const fn named(claim: ClaimId, mode: LockMode) -> Self {
        let shared = match mode {
            LockMode::Read => Self::SHARED.0,
            LockMode::Write => 0,
        };
        let holder = (claim.client.0 as u64) << (THREAD_BITS + CLAIM_BITS)
            | (claim.thread as u64) << CLAIM_BITS
            | claim.index as u64;
        Self(shared | Self::NAMED | holder)
    }

    /// The claim that is named.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "fields of these widths")]
    pub const fn claim(self) -> Option<ClaimId> {
        if self.0 & Self::NAMED == 0 {
            return None;
        }
        Some(ClaimId {
            client: ClientId((self.0 >> (THREAD_BITS + CLAIM_BITS)) as u32),
            thread: (self.0 >> CLAIM_BITS & ((1 << THREAD_BITS) - 1)) as u16,
            index: (self.0 & ((1 << CLAIM_BITS) - 1)) as u8,
        })
    }

    /// Whether claims for reading may be held.
    #[inline]
    #[must_use]
    pub const fn is_shared(self) -> bool {
        self.0 & Self::SHARED.0 != 0
    }

    /// Whether only the daemon changes the word.
    #[inline]
    #[must_use]
    pub const fn is_managed(self) -> bool {
        self.0 & Self::MANAGED.0 != 0
    }

    /// The value in memory.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The word with this value in memory.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn claim(first: u32, lines: u32, mode: LockMode) -> LockClaim {
        LockClaim::of_lines(PageId(3), first, lines, mode).unwrap()
    }

    #[test]
    fn each_byte_whose_bit_is_set_is_in_one_run() {
        let runs = |bytes| byte_runs(bytes).collect::<std::vec::Vec<_>>();
        assert_eq!(runs(0), []);
        let one = |from, to| std::vec![from..to];
        assert_eq!(runs(u64::MAX), one(0, 64));
        assert_eq!(runs(0b1_0110), [1..3, 4..5]);
        assert_eq!(runs(1 << 63 | 1), [0..1, 63..64]);
        assert_eq!(runs(0xff << 56), one(56, 64));
    }

    #[test]
    fn bytes_of_one_line_share_a_lock() {
        let of = |offset, len| {
            LockClaim::covering(PageId(3), offset, len, PageSize::DEFAULT, LockMode::Write)
        };
        assert_eq!(of(0, 64), of(63, 1));
        assert_eq!(of(63, 2), Some(claim(0, 2, LockMode::Write)));
        assert_eq!(of(0, 4096), Some(claim(0, 64, LockMode::Write)));
        assert_eq!(of(1, 4096), None, "65 lines");
        assert_eq!(of(0, 0), None);
        assert_eq!(of(PageSize::DEFAULT.bytes() - 1, 2), None, "two pages");
        assert_eq!(of(u64::MAX, 2), None);
    }

    #[test]
    fn readers_do_not_conflict() {
        let (read, write) = (claim(4, 4, LockMode::Read), claim(7, 1, LockMode::Write));
        assert!(!read.conflicts(read));
        assert!(read.conflicts(write) && write.conflicts(read) && write.conflicts(write));
        assert!(!write.conflicts(claim(8, 1, LockMode::Write)));
        assert!(read.covers(256, 256) && !read.covers(255, 2) && !read.covers(511, 2));
    }

    #[test]
    fn what_another_claim_does_not_have() {
        let all = claim(4, 8, LockMode::Write);
        let without = |first, lines| {
            let rest = all.without(claim(first, lines, LockMode::Write));
            rest.map(|rest| (rest.first(), rest.lines())).collect::<std::vec::Vec<_>>()
        };
        assert_eq!(without(6, 2), [(4, 2), (8, 4)]);
        assert_eq!(without(0, 6), [(6, 6)]);
        assert_eq!(without(10, 9), [(4, 6)]);
        assert_eq!(without(4, 8), []);
        assert!(
            all.contains(claim(4, 8, LockMode::Read)) && !all.contains(claim(4, 9, LockMode::Read))
        );
    }

    #[test]
    fn claims_survive_their_word() {
        for page in [0, 1, u32::MAX] {
            for (first, lines) in [(0, 1), (0, 64), (1, 63), ((1 << 24) - 64, 64)] {
                for mode in [LockMode::Read, LockMode::Write] {
                    let claim = LockClaim::of_lines(PageId(page), first, lines, mode).unwrap();
                    assert_eq!(LockClaim::from_raw(claim.to_raw()), Some(claim));
                }
            }
        }
        assert_eq!(LockClaim::of_lines(PageId(0), 0, 0, LockMode::Read), None);
        assert_eq!(LockClaim::of_lines(PageId(0), (1 << 24) - 1, 2, LockMode::Read), None);
    }

    #[test]
    fn any_word_is_a_claim_or_none() {
        // Each bit alone, with the one that a claim has.
        for bit in 0..63 {
            let raw = 1 << 63 | 1 << bit;
            assert_eq!(LockClaim::from_raw(raw).map(LockClaim::to_raw), Some(raw));
            assert_eq!(LockClaim::from_raw(1 << bit), None);
        }
        assert_eq!(LockClaim::from_raw(u64::MAX), None, "lines after the last one");
    }

    #[test]
    fn named_claims_survive_the_lock_word() {
        for client in [0, 1, u32::MAX] {
            for (thread, index) in [(0, 0), (1, 31), (511, 0), (511, 31)] {
                let claim = ClaimId { client: ClientId(client), thread, index };
                for mode in [LockMode::Read, LockMode::Write] {
                    let word = LockWord::named(claim, mode);
                    assert_eq!(word.claim(), Some(claim));
                    assert_eq!(word.is_shared(), mode == LockMode::Read);
                    assert!(!word.is_managed());
                }
            }
        }
    }
}
