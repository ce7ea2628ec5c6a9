//! Mounts in a mount namespace of one test.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use rackpool_testing::skipped;

/// Runs the test with a tmpfs of `mib` MiB, in a thread with a mount namespace of its own.
/// Processes that the test starts see the mount; other processes do not. Reports the test as
/// skipped when this user may not mount.
pub fn with_tmpfs(what: &str, mib: u64, test: impl FnOnce(&Path) + Send) {
    let run = || {
        let separate = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        });
        if let Err(error) = separate {
            return skipped(&format!("{what}: mounting needs root: {error}"));
        }
        let folder = std::env::temp_dir().join(format!("rackpool-tmpfs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        let size = format!("size={mib}m");
        mount(Some("none"), &folder, Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))
            .expect("a tmpfs, since this user may mount");
        test(&folder);
        umount2(&folder, MntFlags::MNT_DETACH).expect("the tmpfs, which is mounted");
        let _ = std::fs::remove_dir(&folder);
    };
    if let Err(panic) = std::thread::scope(|scope| scope.spawn(run).join()) {
        std::panic::resume_unwind(panic);
    }
}
