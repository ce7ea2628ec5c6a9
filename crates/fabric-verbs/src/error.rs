use std::io;

use rackpool_fabric::FabricError;
use rackpool_model::KernelCopy;

use crate::verbs::LoadError;

/// A verbs fabric that could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no libibverbs that can be used.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// There is no device, or none that can be opened.
    #[error("no RDMA device can be used: {0}")]
    NoDevice(String),
    /// No port fits the address and the options.
    #[error("{0}")]
    NoPort(String),
    /// The device is made of software, and aligned 8-byte words would not be moved whole.
    #[error("{device} is soft-RoCE, and {copy}: {remedy}", remedy = KernelCopy::REMEDY)]
    TornWords {
        /// The device.
        device: String,
        /// How the kernel copies.
        copy: KernelCopy,
    },
    /// An option makes no sense.
    #[error("{option} = {value}: it must be {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An address that other hosts can reach, and no key.
    #[error(
        "{0} can be reached from other hosts, and without a pool key whoever connects could read \
         and write the rack's memory: give the pool a key, or listen on 127.0.0.1"
    )]
    KeyNeeded(std::net::SocketAddr),
    /// The device or the operating system refused something.
    #[error("can't {step} on RDMA device {device}: {cause}")]
    Device {
        /// What was tried.
        step: &'static str,
        /// The device.
        device: String,
        /// What was said, and what to do.
        cause: String,
    },
    /// The operating system refused something.
    #[error("can't {step} for the verbs fabric at {address}: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The address of the fabric.
        address: std::net::SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
}

/// The peer broke the protocol in the way that `detail` says.
pub(crate) fn misbehaved(detail: impl Into<String>) -> FabricError {
    FabricError::Misbehaved { detail: detail.into() }
}

/// `step` failed on this host.
pub(crate) fn local(step: &'static str, cause: impl ToString) -> FabricError {
    FabricError::Local { step, cause: cause.to_string() }
}

/// Why memory could not be registered or queues made, with what to do about the usual reason.
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
