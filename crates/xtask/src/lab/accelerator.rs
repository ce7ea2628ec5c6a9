//! How guests run: by KVM if a guest really boots with it, otherwise emulated. The presence of
//! `/dev/kvm` is not enough: in some virtual machines guests start and make no progress.

use std::fmt;
use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;

use super::cache::Cache;
use super::ctrl_c::Interrupts;
use super::guest::{QEMU, mortal};
use super::kernel::Boot;

const PROBE: Duration = Duration::from_secs(10);

/// What executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU, by translation.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "run by KVM",
            Self::Tcg => "emulated (no KVM that works)",
        })
    }
}

impl Accelerator {
    /// QEMU's options. Without the two flags the guests' kernel copies by words of 8 bytes,
    /// including soft-RoCE's payloads. With them it stores byte by byte when it is emulated, and
    /// the verbs fabric refuses such a device (see docs/design/verbs.md).
    pub(super) fn options(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host,-erms,-fsrm"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"],
        }
    }

    /// Chooses the accelerator. Tries KVM once for each boot of this computer.
    pub(super) fn choose(cache: &Cache, boot: &Boot, interrupts: &Interrupts) -> Result<Self> {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Self::Tcg);
        }
        let this_start = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let [works, fails] =
            ["works", "fails"].map(|how| format!("kvm-{how}-{}", this_start.trim()));
        if cache.find(&works).is_some() {
            return Ok(Self::Kvm);
        }
        if cache.find(&fails).is_some() {
            return Ok(Self::Tcg);
        }
        println!("lab: trying KVM, at most {} s", PROBE.as_secs());
        let does_boot = boots(boot, interrupts);
        interrupts.check()?;
        cache.remove_all(|name| name.starts_with("kvm-"))?;
        let (verdict, chosen) = if does_boot { (works, Self::Kvm) } else { (fails, Self::Tcg) };
        cache.make(|unfinished| {
            let path = unfinished.join("verdict");
            File::create(&path)?;
            Ok((path, verdict))
        })?;
        Ok(chosen)
    }
}

fn boots(boot: &Boot, interrupts: &Interrupts) -> bool {
    let mut qemu = mortal(QEMU);
    qemu.args(["-nodefaults", "-no-user-config", "-machine", "q35"])
        .args(Accelerator::Kvm.options())
        .args(["-m", "512M", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel"])
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1 lab.probe"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    interrupts.run(&mut qemu, PROBE).is_ok_and(|text| text.contains("lab: this accelerator boots"))
}
