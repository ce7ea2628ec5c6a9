use core::fmt;

/// How the kernel's `memcpy` moves aligned 8-byte words. Software RDMA devices (soft-RoCE) move
/// their payloads with it while other threads read and write the same words.
///
/// On x86 the kernel uses `rep movsb` on processors that report it as fast: with the flag `erms` in
/// kernels before 6.4, with `fsrm` since then. That instruction guarantees single bytes only, and
/// an emulated processor stores them one by one. Otherwise the kernel moves 8 bytes at a time. The
/// same holds on Arm for the flag `mops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCopy {
    /// Aligned words are copied whole.
    Words,
    /// Words may be copied byte by byte, since the processor has this flag.
    Bytes(&'static str),
    /// `/proc/cpuinfo` names no processor flags.
    Unknown,
}

/// The first kernel release that tests `fsrm` instead of `erms`.
const ASKS_FOR_FSRM: (u32, u32) = (6, 4);

impl KernelCopy {
    /// Derives the kind of copy from the kernel's release (`/proc/sys/kernel/osrelease`) and the
    /// text of `/proc/cpuinfo`. A kernel whose release can't be parsed counts as one that tests
    /// both flags.
    #[must_use]
    pub fn of(release: &str, cpuinfo: &str) -> Self {
        let asked: &[&str] = match version(release) {
            Some(version) if version < ASKS_FOR_FSRM => &["erms", "mops"],
            Some(_) => &["fsrm", "mops"],
            None => &["erms", "fsrm", "mops"],
        };
        let mut copy = Self::Unknown;
        for line in cpuinfo.lines() {
            let Some((name, flags)) = line.split_once(':') else { continue };
            if !matches!(name.trim(), "flags" | "Features") {
                continue;
            }
            for flag in flags.split_whitespace() {
                if let Some(found) = asked.iter().find(|asked| **asked == flag) {
                    return Self::Bytes(found);
                }
            }
            copy = Self::Words;
        }
        copy
    }

    /// Returns true if aligned words are copied whole.
    #[must_use]
    pub fn keeps_words_whole(self) -> bool {
        self == Self::Words
    }

    /// Advice for an operator whose kernel may copy byte by byte.
    pub const REMEDY: &'static str = "boot with clearcpuid=erms,fsrm on the kernel's command line \
        (before Linux 5.18 clearcpuid=297,580; on Arm arm64.nomops), or use --fabric tcp";
}

/// Says why soft-RoCE can't be used.
impl fmt::Display for KernelCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words => f.write_str("this kernel copies by words"),
            Self::Bytes(flag) => write!(
                f,
                "this kernel copies by single bytes on a processor with {flag}, and others would \
                 see half-written words"
            ),
            Self::Unknown => f.write_str(
                "/proc/cpuinfo does not tell whether this kernel copies by words or by bytes",
            ),
        }
    }
}

/// The first two numbers of a release like `6.1.0-56-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().splitn(3, '.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?;
    let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor.get(..end)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    fn of(release: &str, flags: &str) -> KernelCopy {
        let cpuinfo = format!("processor\t: 0\nflags\t\t: fpu {flags} lm\nbugs\t\t: erms fsrm\n");
        KernelCopy::of(release, &cpuinfo)
    }

    #[test]
    fn older_kernels_ask_for_erms_and_newer_ones_for_fsrm() {
        for (release, flags, expected) in [
            ("6.1.0-56-amd64", "rep_good erms", KernelCopy::Bytes("erms")),
            ("6.1.0-56-amd64", "rep_good fsrm", KernelCopy::Words),
            ("6.3.13", "erms fsrm", KernelCopy::Bytes("erms")),
            ("6.4.0-rc1", "rep_good erms", KernelCopy::Words),
            ("6.4.0-rc1", "erms fsrm", KernelCopy::Bytes("fsrm")),
            ("6.18.44-fc-v509", "fsrm", KernelCopy::Bytes("fsrm")),
            ("10.0", "erms", KernelCopy::Words),
            ("5.15", "rep_good", KernelCopy::Words),
            ("5.10.0", "notfsrm fsrm_not", KernelCopy::Words),
        ] {
            assert_eq!(of(release, flags), expected, "{release} {flags}");
        }
    }

    #[test]
    fn what_can_not_be_read_is_not_trusted() {
        for release in ["", "unknown", "6", "6.", "six.four"] {
            assert_eq!(of(release, "erms"), KernelCopy::Bytes("erms"), "{release}");
            assert_eq!(of(release, "fsrm"), KernelCopy::Bytes("fsrm"), "{release}");
            assert_eq!(of(release, "rep_good"), KernelCopy::Words, "{release}");
        }
        assert_eq!(KernelCopy::of("6.1", ""), KernelCopy::Unknown);
        assert!(!KernelCopy::Unknown.keeps_words_whole());
    }

    #[test]
    fn one_processor_with_the_flag_is_enough() {
        let cpuinfo = "flags\t: fpu\n\nflags\t: fpu erms\n";
        assert_eq!(KernelCopy::of("6.1.0", cpuinfo), KernelCopy::Bytes("erms"));
    }

    #[test]
    fn arm_processors_have_a_flag_of_their_own() {
        let arm =
            |features: &str| KernelCopy::of("6.13.0", &format!("Features\t: fp {features}\n"));
        assert_eq!(arm("asimd"), KernelCopy::Words);
        assert_eq!(arm("asimd mops"), KernelCopy::Bytes("mops"));
    }

    #[test]
    fn the_reason_names_the_flag() {
        let text = KernelCopy::Bytes("erms").to_string();
        assert!(text.contains("with erms") && !text.contains("  "), "{text}");
        assert!(!KernelCopy::REMEDY.contains("  "));
    }
}
