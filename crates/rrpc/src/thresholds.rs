use std::fmt;

use rackpool_model::ByteSize;

use crate::Mode;

/// The sizes of data up to which each mode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Maximum length, in bytes, of data of a known size that travels in the message.
    pub pure: u32,
    /// Above `pure`, data up to this length in bytes is written by the server; longer data is read
    /// by the caller.
    pub zero_copy: u32,
    /// Maximum length, in bytes, of data of an unknown size that travels in the message; longer
    /// data is read by the caller.
    pub pure_unknown: u32,
}

impl Default for Thresholds {
    /// The values of the Rcmp paper, section 5.5.
    fn default() -> Self {
        Self { pure: 512, zero_copy: u32::MAX, pure_unknown: 512 }
    }
}

impl Thresholds {
    /// The mode for data of `len` bytes, a size known to the caller.
    #[must_use]
    pub const fn mode(&self, len: u32) -> Mode {
        if len <= self.pure {
            Mode::Pure
        } else if len <= self.zero_copy {
            Mode::ZeroCopy
        } else {
            Mode::ThenOneSided
        }
    }
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u32| ByteSize(bytes.into());
        write!(f, "pure RPC up to {}, ", size(self.pure))?;
        match self.zero_copy {
            u32::MAX => f.write_str("zero-copy above")?,
            bytes if bytes <= self.pure => f.write_str("RPC then one-sided above")?,
            bytes => write!(f, "zero-copy up to {}, RPC then one-sided above", size(bytes))?,
        }
        write!(f, "; pure RPC up to {} when the size is not known", size(self.pure_unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_follow_the_size() {
        let thresholds = Thresholds { pure: 64, zero_copy: 4096, pure_unknown: 128 };
        let modes = [64, 65, 4096, 4097].map(|len| thresholds.mode(len));
        assert_eq!(modes, [Mode::Pure, Mode::ZeroCopy, Mode::ZeroCopy, Mode::ThenOneSided]);
        assert_eq!(Thresholds::default().mode(512), Mode::Pure);
        assert_eq!(Thresholds::default().mode(u32::MAX), Mode::ZeroCopy);
    }

    #[test]
    fn people_read_what_is_chosen() {
        let text = Thresholds::default().to_string();
        assert!(text.starts_with("pure RPC up to 512 B, zero-copy above; pure RPC"), "{text}");
        let text = Thresholds { pure: 64, zero_copy: 4096, pure_unknown: 128 }.to_string();
        assert!(text.contains("zero-copy up to 4 KiB, RPC then one-sided above"), "{text}");
    }
}
