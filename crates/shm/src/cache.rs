//! The processor's last-level cache, and the part of it that devices use.

use std::path::Path;

const LAST_LEVEL: &str = "/sys/devices/system/cpu/cpu0/cache/index3";
/// Bit mask of the ways of the last-level cache that programs share with devices, where the kernel
/// can partition it (resctrl).
const SHARED_WAYS: &str = "/sys/fs/resctrl/info/L3/shareable_bits";
/// Number of ways into which devices write by the processors' default (DDIO).
const IO_WAYS: u64 = 2;

/// Bytes of the last-level cache that writes of devices may fill. If more bytes are in flight,
/// arriving data is evicted to memory before it is used. These are the ways that the kernel reports
/// as shared with devices; if it reports none, two ways, the default of processors that have such a
/// limit (Farshin et al., ATC 2020). Returns 0 if the kernel does not describe the cache.
#[must_use]
pub fn io_share() -> u64 {
    let ways = std::fs::read_to_string(SHARED_WAYS).ok().and_then(|mask| ways_in(&mask));
    share_in(Path::new(LAST_LEVEL), ways.unwrap_or(IO_WAYS)).unwrap_or(0)
}

/// Number of ways in a hexadecimal mask; `None` if it has none or is invalid.
fn ways_in(mask: &str) -> Option<u64> {
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(u64::from(mask.count_ones())).filter(|ways| *ways > 0)
}

fn share_in(folder: &Path, io_ways: u64) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let bytes = parse_size(&read("size")?)?;
    let ways: u64 = read("ways_of_associativity")?.trim().parse().ok()?;
    Some(bytes.checked_div(ways)?.saturating_mul(io_ways).min(bytes))
}

/// Parses a size as the kernel writes it: `32768K`.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_the_ways() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("size", "32768K\n").unwrap();
        assert_eq!(share_in(folder.path(), 2), None);
        write("ways_of_associativity", "16\n").unwrap();
        assert_eq!(share_in(folder.path(), 2), Some(4 << 20));
        assert_eq!(share_in(folder.path(), 11), Some(22 << 20));
        write("ways_of_associativity", "1\n").unwrap();
        assert_eq!(share_in(folder.path(), 2), Some(32 << 20));
        write("ways_of_associativity", "0\n").unwrap();
        assert_eq!(share_in(folder.path(), 2), None);
    }

    #[test]
    fn ways_as_the_kernel_writes_them() {
        assert_eq!((ways_in("600\n"), ways_in("7ff\n")), (Some(2), Some(11)));
        assert_eq!((ways_in("0\n"), ways_in("x"), ways_in("")), (None, None, None));
    }

    #[test]
    fn sizes_as_the_kernel_writes_them() {
        assert_eq!(parse_size("512K\n"), Some(512 << 10));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("64"), Some(64));
        assert_eq!((parse_size(""), parse_size("K"), parse_size("xK")), (None, None, None));
    }
}
