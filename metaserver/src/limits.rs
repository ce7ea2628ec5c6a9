use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum number of unauthenticated peers, if the limit of open files allows it.
const UNAUTHENTICATED: u64 = 1024;
/// Maximum number of authenticated connections, if the limit of open files allows it.
const KNOWN: u64 = 4096;
/// Descriptors reserved for everything else.
const OTHERS: u64 = 64;

/// The limits on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of unauthenticated peers.
    pub(crate) unauthenticated_peers: usize,
    /// Maximum number of authenticated connections; further ones are rejected.
    pub(crate) known: usize,
}

impl Limits {
    /// Raises the limit of open files as far as allowed, and returns the limits that follow from
    /// it.
    pub(crate) fn raise() -> Self {
        let found = getrlimit(Resource::Nofile);
        let raised =
            setrlimit(Resource::Nofile, Rlimit { current: found.maximum, maximum: found.maximum });
        let granted = if raised.is_ok() { found.maximum } else { found.current };
        Self::of(granted.unwrap_or(u64::MAX))
    }

    fn of(descriptors: u64) -> Self {
        let unauthenticated_peers = UNAUTHENTICATED.min(descriptors / 4).max(1);
        let known = KNOWN.min(descriptors.saturating_sub(unauthenticated_peers + OTHERS)).max(1);
        let number = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self { unauthenticated_peers: number(unauthenticated_peers), known: number(known) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_need_more_descriptors_than_there_are() {
        assert_eq!(Limits::of(1 << 20), Limits { unauthenticated_peers: 1024, known: 4096 });
        assert_eq!(Limits::of(1024), Limits { unauthenticated_peers: 256, known: 704 });
        assert_eq!(Limits::of(0), Limits { unauthenticated_peers: 1, known: 1 });
    }
}
