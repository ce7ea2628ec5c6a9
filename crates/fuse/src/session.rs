//! How the kernel is asked to behave.

use std::io;

use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Request, SessionACL};

use crate::Options;
use crate::mount_point::SOURCE;
pub use crate::mount_point::set_read_ahead;

/// Bytes of one request: as many as the kernel sends.
pub(crate) const MAX_REQUEST: u32 = 1 << 20;
/// Requests that programs do not wait for, like reading ahead, under way at once.
const MAX_BACKGROUND: u16 = 64;

/// What is wanted of kernels that know it.
const WANTED: [InitFlags; 9] = [
    // Look-ups in one folder at once.
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Parts of one direct access at once.
    InitFlags::FUSE_ASYNC_DIO,
    // Mappings of files that bypass the page cache.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    // The volume takes set-id bits away, or the kernel would look them up at each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // Locks are the volume's, for all mounts.
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    // The kernel asks for the ACLs of what it checks. A default ACL comes before the umask, so the
    // volume applies both; and it is told when an ACL takes set-group-id away.
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_SETXATTR_EXT,
];

/// How it is mounted.
#[must_use]
pub fn config(options: &Options) -> Config {
    let is_root = nix::unistd::geteuid().is_root();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{SOURCE}{}", options.volume)),
        MountOption::Subtype("rackpool".into()),
        MountOption::DefaultPermissions,
    ];
    if is_root {
        // As with file systems on disks.
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    if is_root || options.allow_other {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.into());
    config.clone_fd = true;
    config
}

/// Tells the kernel at the start.
pub fn negotiate(kernel: &mut KernelConfig) {
    for wanted in WANTED {
        // An older kernel goes without.
        let _ = kernel.add_capabilities(wanted);
    }
    // Where fewer are allowed, the kernel takes what is.
    let _ = kernel.set_max_write(MAX_REQUEST);
    let _ = kernel.set_max_background(MAX_BACKGROUND);
}

/// Comes to terms with the kernel; what it asks for afterwards is read elsewhere.
#[derive(Debug)]
pub(crate) struct Handshake;

impl Filesystem for Handshake {
    fn init(&mut self, _: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        negotiate(kernel);
        Ok(())
    }
}
