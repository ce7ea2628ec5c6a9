//! The format of a trace file, described in docs/design/seeing.md.

use std::collections::BTreeMap;

use rackpool_model::{Access, MAX_RACKS, PageId, RackId};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Accessed, RackFrames, Trace};

pub(crate) const MAGIC: &[u8; 8] = b"RPTRACE1";
/// The longest content of a part, in bytes.
pub(crate) const MAX_PART: usize = 1 << 20;

/// Why bytes could not be read as a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The header is not that of a trace.
    #[error("this is no access trace of this version: record one with `rackpool ycsb --record`")]
    Foreign,
    /// The trace is not complete.
    #[error("the trace breaks off after {0} accesses: its recording was cut off; record it again")]
    CutOff(u64),
    /// A checksum or a field is invalid.
    #[error("the trace is damaged: {0}")]
    Damaged(&'static str),
}

use TraceError::Damaged;

/// Encodes the header of the file.
pub(crate) fn header(page_bytes: u64, racks: &[RackFrames]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&page_bytes.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(racks.len()).unwrap_or(u16::MAX).to_le_bytes());
    for rack in racks {
        bytes.extend_from_slice(&rack.rack.0.to_le_bytes());
        for number in [rack.first.0, rack.frames, rack.free] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The kind of a part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Accesses = b'A',
    Home = b'H',
    End = b'E',
}

/// Encodes a part of the file: kind, length, checksum, content.
pub(crate) fn part(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind as u8];
    bytes.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(content).wrapping_add(kind as u64).to_le_bytes());
    bytes.extend_from_slice(content);
    bytes
}

/// Accesses of one rack in order of time, encoded as the content of a part.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) content: Vec<u8>,
    last_ns: u64,
    last_page: u32,
}

impl Packed {
    pub(crate) fn new(rack: RackId, start_ns: u64) -> Self {
        let mut content = rack.0.to_le_bytes().to_vec();
        content.extend_from_slice(&start_ns.to_le_bytes());
        Self { content, last_ns: start_ns, last_page: 0 }
    }

    /// Appends an access. The caller must ensure that times of a part do not decrease.
    pub(crate) fn push(&mut self, at_ns: u64, page: PageId, access: Access) {
        let step = i64::from(page.0) - i64::from(self.last_page);
        let zigzag = ((step << 1) ^ (step >> 63)).cast_unsigned();
        varint(&mut self.content, zigzag << 1 | u64::from(access == Access::Write));
        varint(&mut self.content, at_ns.saturating_sub(self.last_ns));
        (self.last_ns, self.last_page) = (self.last_ns.max(at_ns), page.0);
    }

    /// Returns true if another access fits the part.
    pub(crate) fn has_room(&self) -> bool {
        self.content.len() + 20 <= MAX_PART
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap_or_default());
}

/// The bytes still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl Trace {
    /// Reads and checks a trace. Takes memory of at most eight times the file's size.
    ///
    /// # Errors
    /// When the bytes are not a trace, or the trace is damaged or not complete.
    pub fn parse(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut rest = Rest(bytes);
        let (page_bytes, racks) = read_header(bytes, &mut rest)?;
        let mut trace = Self { page_bytes, racks, homes: BTreeMap::new(), accesses: Vec::new() };
        loop {
            let cut_off = TraceError::CutOff(trace.accesses.len() as u64);
            let Some([kind]) = rest.array() else { return Err(cut_off) };
            let (Some(length), Some(sum)) = (rest.u32(), rest.u64()) else { return Err(cut_off) };
            let length = usize::try_from(length).ok().filter(|length| *length <= MAX_PART);
            let length = length.ok_or(Damaged("a part is too long"))?;
            let Some(content) = rest.take(length) else { return Err(cut_off) };
            if xxh3_64(content).wrapping_add(u64::from(kind)) != sum {
                return Err(Damaged("a part's checksum does not hold"));
            }
            let mut content = Rest(content);
            match kind {
                b'A' => trace.read_accesses(&mut content)?,
                b'H' => trace.read_home(&mut content)?,
                b'E' => {
                    let count = content.u64().filter(|_| rest.0.is_empty() && content.0.is_empty());
                    if count != Some(trace.accesses.len() as u64) {
                        return Err(Damaged("its end does not fit what is before"));
                    }
                    break;
                }
                _ => return Err(Damaged("it has a part of an unknown kind")),
            }
        }
        // Each thread's parts are in order; the sort keeps the order of equal times.
        trace.accesses.sort_by_key(|access| access.at_ns);
        Ok(trace)
    }

    fn read_accesses(&mut self, content: &mut Rest<'_>) -> Result<(), TraceError> {
        let rack = content.u16().map(RackId).filter(|rack| self.knows(*rack));
        let rack = rack.ok_or(Damaged("a part is of no rack"))?;
        let mut at_ns = content.u64().ok_or(Damaged("a part has no time"))?;
        let (mut page, mut known) = (0_i64, None);
        while !content.0.is_empty() {
            let (Some(what), Some(wait)) = (content.varint(), content.varint()) else {
                return Err(Damaged("an access breaks off"));
            };
            let zigzag = what >> 1;
            let step = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
            page = page.checked_add(step).ok_or(Damaged("an access is of no page"))?;
            at_ns = at_ns.checked_add(wait).ok_or(Damaged("an access has no time"))?;
            let of = u32::try_from(page).map(PageId).map_err(|_| Damaged("that is no page"))?;
            if known != Some(of) && self.home(of).is_none() {
                return Err(Damaged("an access is of a page that no rack has"));
            }
            known = Some(of);
            let access = if what & 1 == 1 { Access::Write } else { Access::Read };
            self.accesses.push(Accessed { at_ns, page: of, rack, access });
        }
        Ok(())
    }

    fn read_home(&mut self, content: &mut Rest<'_>) -> Result<(), TraceError> {
        let (Some(page), Some(rack)) = (content.u32().map(PageId), content.u16().map(RackId))
        else {
            return Err(Damaged("a page's home breaks off"));
        };
        let known = self.knows(rack) && self.racks.iter().any(|rack| rack.bore(page));
        if !content.0.is_empty() || !known || self.homes.insert(page, rack).is_some() {
            return Err(Damaged("a page's home can't be"));
        }
        Ok(())
    }

    fn knows(&self, rack: RackId) -> bool {
        self.racks.iter().any(|known| known.rack == rack)
    }
}

fn read_header(bytes: &[u8], rest: &mut Rest<'_>) -> Result<(u64, Vec<RackFrames>), TraceError> {
    if rest.take(MAGIC.len()) != Some(MAGIC) {
        return Err(TraceError::Foreign);
    }
    let cut_off = TraceError::CutOff(0);
    let (Some(page_bytes), Some(count)) = (rest.u64(), rest.u16()) else { return Err(cut_off) };
    let mut racks: Vec<RackFrames> = Vec::new();
    for _ in 0..count {
        let (Some(rack), Some(first)) = (rest.u16(), rest.u32()) else { return Err(cut_off) };
        let (Some(frames), Some(free)) = (rest.u32(), rest.u32()) else { return Err(cut_off) };
        racks.push(RackFrames { rack: RackId(rack), first: PageId(first), frames, free });
    }
    let summed = &bytes[..bytes.len() - rest.0.len()];
    let Some(sum) = rest.u64() else { return Err(cut_off) };
    if sum != xxh3_64(summed) {
        return Err(Damaged("its header's checksum does not hold"));
    }
    check_racks(&racks)?;
    if !page_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&page_bytes) {
        return Err(Damaged("its page size is none"));
    }
    Ok((page_bytes, racks))
}

/// Checks that the ranges of page ids ascend and that each rack occurs once.
fn check_racks(racks: &[RackFrames]) -> Result<(), TraceError> {
    let mut next = 1_u64;
    for (at, rack) in racks.iter().enumerate() {
        let first = u64::from(rack.first.0);
        let twice = racks[..at].iter().any(|other| other.rack == rack.rack);
        if twice || first < next || rack.frames == 0 || rack.free > rack.frames {
            return Err(Damaged("its racks can't be"));
        }
        next = first + u64::from(rack.frames);
    }
    if racks.is_empty() || racks.len() > usize::from(MAX_RACKS) || next > 1 << 32 {
        return Err(Damaged("its racks can't be"));
    }
    Ok(())
}
