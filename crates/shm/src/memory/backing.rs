//! The pages that back a mapping, according to `/proc/self/smaps`.

use std::io;
use std::ops::Range;

use crate::Mapping;

/// The pages of this process that back a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Bytes that this process has touched.
    pub resident_bytes: u64,
    /// Bytes of them in huge pages.
    pub huge_bytes: u64,
    /// Page size in bytes with which the kernel manages the file: 2 MiB or 1 GiB on a hugetlbfs.
    pub page_bytes: u64,
}

/// Examines a mapping.
pub fn of(mapping: &Mapping) -> io::Result<Backing> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    Ok(parse(&smaps, mapping.base().as_ptr().addr() as u64, mapping.len()))
}

/// Touches the first page of a mapping and then examines it.
pub fn touched(mapping: &Mapping) -> io::Result<Backing> {
    let mut byte = [0];
    mapping
        .read(0, &mut byte)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    std::hint::black_box(byte);
    of(mapping)
}

/// Sums the areas that lie within `len` bytes from `base` on.
fn parse(smaps: &str, base: u64, len: u64) -> Backing {
    let mut sum = Backing::default();
    let mut inside = false;
    let mut area_page_bytes = 0;
    let mut hugetlb = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some(area) = area(first) {
            inside = area.start < base.saturating_add(len) && area.end > base;
            continue;
        }
        let kib = second.and_then(|kib| kib.parse::<u64>().ok());
        let (true, Some(kib)) = (inside, kib) else { continue };
        let bytes = kib.saturating_mul(1024);
        match first {
            "KernelPageSize:" => area_page_bytes = bytes,
            "Rss:" => sum.resident_bytes += bytes,
            "ShmemPmdMapped:" | "FilePmdMapped:" | "AnonHugePages:" => sum.huge_bytes += bytes,
            // Pages of a hugetlbfs appear in these fields only.
            "Shared_Hugetlb:" | "Private_Hugetlb:" => hugetlb += bytes,
            _ => {}
        }
    }
    sum.page_bytes = area_page_bytes;
    sum.resident_bytes += hugetlb;
    sum.huge_bytes += hugetlb;
    sum
}

/// Parses the address range of an area, the first word of its first line.
fn area(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 rw-s 00000000 00:1b 2 /dev/shm/frames
KernelPageSize:        4 kB
Rss:                   8 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr
3000-5000 rw-s 00000000 00:1b 2 /dev/shm/other
Rss:                   4 kB
200000-600000 rw-s 00000000 00:1b 2 /dev/shm/frames
KernelPageSize:        4 kB
Rss:                4096 kB
ShmemPmdMapped:     2048 kB
600000-a00000 rw-s 00000000 00:10 2 /dev/hugepages/x
KernelPageSize:     2048 kB
Rss:                   0 kB
Shared_Hugetlb:     2048 kB
";

    #[test]
    fn only_the_areas_of_the_mapping_count() {
        let found = parse(SMAPS, 0x1000, 0x2000);
        assert_eq!(found, Backing { resident_bytes: 8 << 10, huge_bytes: 0, page_bytes: 4096 });
        let found = parse(SMAPS, 0x20_0000, 0x40_0000);
        assert_eq!((found.resident_bytes, found.huge_bytes), (4 << 20, 2 << 20));
        let found = parse(SMAPS, 0x60_0000, 0x40_0000);
        assert_eq!((found.huge_bytes, found.page_bytes), (2 << 20, 2 << 20));
        assert_eq!(parse("", 0, 1), Backing::default());
    }

    #[test]
    fn touched_memory_is_resident() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = Mapping::new(&file, 8192).unwrap();
        assert_eq!(of(&mapping).unwrap().resident_bytes, 0);
        assert!(touched(&mapping).unwrap().resident_bytes >= 4096);
    }
}
