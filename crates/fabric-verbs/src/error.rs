use std::io;

use rackpool_fabric::FabricError;
use rackpool_sync::KernelCopy;

use crate::verbs::LoadError;

/// Why a verbs fabric could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsStartError {
    /// There is no usable libibverbs.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// There is no device, or none can be opened.
    #[error("no RDMA device can be used: {0}")]
    NoDevice(String),
    /// No port matches the address and the options.
    #[error("{0}")]
    NoPort(String),
    /// The device is soft-RoCE, and its kernel copies may tear aligned 8-byte words.
    #[error("{device} is soft-RoCE, and {copy}: {remedy}", remedy = KernelCopy::REMEDY)]
    TornWords {
        /// Name of the device.
        device: String,
        /// The kernel's way of copying.
        copy: KernelCopy,
    },
    /// An option is outside its valid range.
    #[error("{option} = {value}: it must be {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The address can be reached from other hosts, and the fabric has no key.
    #[error(
        "{0} can be reached from other hosts, and without a pool key whoever connects could read \
         and write the rack's memory: give the pool a key, or listen on 127.0.0.1"
    )]
    KeyNeeded(std::net::SocketAddr),
    /// A call to the device or the operating system failed.
    #[error("can't {step} on RDMA device {device}: {cause}")]
    Device {
        /// The step that failed.
        step: &'static str,
        /// Name of the device.
        device: String,
        /// The error, and a remedy if known.
        cause: String,
    },
    /// A system call failed.
    #[error("can't {step} for the verbs fabric at {address}: {source}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The address of the fabric.
        address: std::net::SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// A violation of the protocol by the peer, described by `detail`.
pub(crate) fn misbehaved(detail: impl Into<String>) -> FabricError {
    FabricError::Misbehaved { detail: detail.into() }
}

/// The error for a `step` that failed on this host.
pub(crate) fn local(step: &'static str, cause: impl ToString) -> FabricError {
    FabricError::Local { step, cause: cause.to_string() }
}

/// The message for a failed registration or queue creation, with the remedy for its usual cause,
/// the locked-memory limit.
pub(crate) fn explain_memory(error: &io::Error, bytes: u64) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (error.kind(), limit) {
        (io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied, Some(limit)) => format!(
            "{error}. {bytes} B have to be locked in memory and the limit of this process is \
             {limit} B: raise it (LimitMEMLOCK=infinity in the systemd unit, ulimit -l unlimited \
             in a shell, or memlock in /etc/security/limits.conf)"
        ),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_limit_is_explained_and_other_errors_are_left_alone() {
        let other = io::Error::from_raw_os_error(22);
        assert_eq!(explain_memory(&other, 4096), other.to_string());
        let full = explain_memory(&io::Error::from_raw_os_error(12), 4096);
        match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
            Some(_) => assert!(full.contains("4096 B") && full.contains("LimitMEMLOCK"), "{full}"),
            None => assert!(!full.contains("LimitMEMLOCK"), "{full}"),
        }
    }
}
