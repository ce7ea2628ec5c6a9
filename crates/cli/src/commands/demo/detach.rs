//! Detaching a mount by force.

use std::path::Path;
use std::process::Command;

/// Detaches a mount whose process may be gone.
pub(super) fn detach(point: &Path) {
    let flags = nix::mount::MntFlags::MNT_DETACH;
    if nix::mount::umount2(point, flags).is_err() {
        let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(point).output();
    }
}
