use core::fmt;
use core::str::FromStr;

/// The kind of fabric between racks. All racks of a pool use the same kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// All racks are on one host; shared memory with a model of latency and bandwidth.
    #[default]
    Emulated,
    /// TCP.
    Tcp,
    /// RDMA devices, through libibverbs.
    Verbs,
}

/// The text names no kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no fabric: write emulated, tcp or verbs")]
pub struct FabricKindError;

impl FabricKind {
    const ALL: [Self; 3] = [Self::Emulated, Self::Tcp, Self::Verbs];

    const fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

impl FromStr for FabricKind {
    type Err = FabricKindError;

    fn from_str(text: &str) -> Result<Self, FabricKindError> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(FabricKindError)
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_shown() {
        for kind in FabricKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("TCP".parse::<FabricKind>(), Err(FabricKindError));
        assert_eq!("".parse::<FabricKind>(), Err(FabricKindError));
    }
}
