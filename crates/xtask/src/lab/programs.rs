//! The programs that the lab needs on this computer; the guests run the same ones.

use std::env;

use anyhow::{Result, ensure};

use super::guest::QEMU;

/// A program, and the Debian package that contains it.
const NEEDED: &[(&str, &str)] = &[
    (QEMU, "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("setpriv", "util-linux"),
    ("ip", "iproute2"),
    ("numactl", "numactl"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("rping", "rdmacm-utils"),
    ("cxl", "ndctl"),
    ("daxctl", "daxctl"),
];

/// Checks that all programs are installed.
///
/// # Errors
/// When a program is missing; names the packages.
pub(super) fn require() -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Root's programs are here; a user's PATH may leave these folders out.
    let folders: Vec<_> =
        env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let missing = missing(|program| folders.iter().any(|folder| folder.join(program).exists()));
    ensure!(
        missing.is_empty(),
        "the lab lacks Debian's packages {}: bash deploy/prepare.sh test",
        missing.join(" ")
    );
    Ok(())
}

fn missing(is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    NEEDED.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_by_their_packages() {
        assert!(missing(|_| true).is_empty());
        assert_eq!(missing(|program| program != "ip" && program != "cxl"), ["iproute2", "ndctl"]);
    }
}
