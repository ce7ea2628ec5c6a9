use std::fmt;

use super::{HardwareError, Registers, Socket, State};
use crate::WayMask;

/// A change of a socket's register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The socket, and the processor through which it is accessed.
    pub socket: Socket,
    /// The ways before.
    pub old: WayMask,
    /// The ways after.
    pub new: WayMask,
}

/// What is to be changed. A plan changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Registers.
    pub registers: Vec<Change>,
    /// The default group's line for the last-level caches in resctrl, before and after.
    pub programs: Option<(String, String)>,
}

impl Plan {
    /// Gives devices the `count` highest ways of each socket's cache. Ways that devices have now
    /// stay theirs: those of the default are the hardware's own.
    pub fn ways(
        state: &State,
        registers: &mut dyn Registers,
        count: u32,
    ) -> Result<Self, HardwareError> {
        let found = state.ways(registers)?;
        let all = state.cache.as_ref().and_then(|cache| cache.ways).ok_or_else(|| {
            HardwareError::Refused("the kernel does not say how many ways the cache has".into())
        })?;
        let least = found.iter().map(|(_, mask)| mask.count()).max().unwrap_or(1);
        if !(least..=all).contains(&count) {
            return Err(HardwareError::Refused(format!(
                "--ways {count}: devices have {least} ways now, which they keep, of {all}: give a \
                 number from {least} to {all}"
            )));
        }
        let new = |old: WayMask| WayMask(WayMask::highest(count, all).0 | old.0);
        let registers = found
            .into_iter()
            .map(|(socket, old)| Change { socket, old, new: new(old) })
            .filter(|change| change.old != change.new)
            .collect();
        Ok(Self { registers, programs: None })
    }

    /// Keeps programs of the default group out of `devices` ways: they get the longest run of the
    /// other ways, since a mask of CAT has no gaps.
    pub fn without_programs(
        mut self,
        state: &State,
        devices: WayMask,
    ) -> Result<Self, HardwareError> {
        let resctrl = state.resctrl.as_ref().ok_or_else(|| {
            HardwareError::Refused(
                "programs can be kept out by resctrl only, which is not mounted: mount -t resctrl \
                 resctrl /sys/fs/resctrl"
                    .into(),
            )
        })?;
        let mask = longest_run(resctrl.all.0 & !devices.0);
        if mask.count() < resctrl.min_ways {
            return Err(HardwareError::Refused(format!(
                "devices with ways {devices:#x} leave programs {} ways in one run, a mask has at \
                 least {}: give devices fewer",
                mask.count(),
                resctrl.min_ways,
                devices = devices.0
            )));
        }
        let group = resctrl.groups.first().filter(|group| group.name.is_empty());
        let group = group.ok_or_else(|| {
            HardwareError::Refused("resctrl has no mask of the default group".into())
        })?;
        let line = |masks: &mut dyn Iterator<Item = (u32, WayMask)>| {
            let parts: Vec<String> =
                masks.map(|(cache, mask)| format!("{cache}={:x}", mask.0)).collect();
            format!("L3:{}", parts.join(";"))
        };
        let old = line(&mut group.masks.iter().copied());
        let new = line(&mut group.masks.iter().map(|(cache, _)| (*cache, mask)));
        self.programs = (old != new).then_some((old, new));
        Ok(self)
    }

    /// Returns true if the machine already is as planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registers.is_empty() && self.programs.is_none()
    }
}

/// The longest run of set bits, the lowest of several.
fn longest_run(mask: u32) -> WayMask {
    let mut best = 0;
    let mut start = 0;
    while start < u32::BITS {
        let length = mask.checked_shr(start).unwrap_or(0).trailing_ones();
        let run = WayMask::all(length).0.checked_shl(start).unwrap_or(0);
        if length > u32::count_ones(best) {
            best = run;
        }
        start += length.max(1);
    }
    WayMask(best)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Change { socket, old, new } in &self.registers {
            writeln!(
                f,
                "socket {}: register 0xC8B through CPU {}: {:#x} -> {:#x} ({} -> {} ways for devices)",
                socket.id,
                socket.cpu,
                old.0,
                new.0,
                old.count(),
                new.count()
            )?;
        }
        if let Some((old, new)) = &self.programs {
            writeln!(f, "/sys/fs/resctrl/schemata: {old} -> {new}")?;
        }
        Ok(())
    }
}
