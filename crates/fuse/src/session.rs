//! What is negotiated with the kernel.

use std::io;

use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Request, SessionACL};

use crate::MountOptions;
use crate::mount_point::SOURCE;
pub use crate::mount_point::set_read_ahead;

/// The most bytes of data in one request: the kernel's maximum.
pub(crate) const MAX_REQUEST: u32 = 1 << 20;
/// The most asynchronous requests in flight, such as read-ahead.
const MAX_BACKGROUND: u16 = 64;

/// Capabilities requested of kernels that support them.
const WANTED: [InitFlags; 9] = [
    // Concurrent look-ups in one folder.
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Concurrent parts of one direct access.
    InitFlags::FUSE_ASYNC_DIO,
    // Mappings of files that bypass the page cache.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    // The volume clears set-id bits; otherwise the kernel would look them up at each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // The volume keeps locks, for all mounts.
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    // The kernel requests the ACLs that it checks. A default ACL replaces the umask, so the volume
    // applies both; and the kernel says when an ACL must clear set-group-id.
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_SETXATTR_EXT,
];

/// The mount options.
#[must_use]
pub fn config(options: &MountOptions) -> Config {
    let is_root = nix::unistd::geteuid().is_root();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{SOURCE}{}", options.volume)),
        MountOption::Subtype("rackpool".into()),
        MountOption::DefaultPermissions,
    ];
    if is_root {
        // As for file systems on disks.
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    if is_root || options.allow_other {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.into());
    config.clone_fd = true;
    config
}

/// Requests the capabilities and limits from the kernel.
pub fn negotiate(kernel: &mut KernelConfig) {
    for wanted in WANTED {
        // An older kernel does without.
        let _ = kernel.add_capabilities(wanted);
    }
    // If fewer are allowed, the kernel uses its own limit.
    let _ = kernel.set_max_write(MAX_REQUEST);
    let _ = kernel.set_max_background(MAX_BACKGROUND);
}

/// The `fuser` side of the negotiation; `device` reads all later requests.
#[derive(Debug)]
pub(crate) struct Handshake;

impl Filesystem for Handshake {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        negotiate(kernel);
        Ok(())
    }
}
