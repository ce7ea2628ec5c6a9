use std::fmt;

use rackpool_shm::host::HostFiles;

use super::HardwareError;

/// What `/proc/cpuinfo` says of the first processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// `GenuineIntel`, `AuthenticAMD`, …
    pub vendor: String,
    /// The family.
    pub family: u32,
    /// The model within the family.
    pub model: u32,
}

impl Processor {
    /// Returns `None` if the kernel does not say what processor this is.
    #[must_use]
    pub fn of(machine: &HostFiles) -> Option<Self> {
        let text = machine.proc_text("cpuinfo")?;
        let value = |wanted: &str| {
            text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == wanted).then(|| value.trim().to_owned())
            })
        };
        Some(Self {
            vendor: value("vendor_id")?,
            family: value("cpu family")?.parse().ok()?,
            model: value("model")?.parse().ok()?,
        })
    }

    /// Fails unless the processor is known to have `IIO LLC WAYS` in register 0xC8B. The model is
    /// that of Farshin et al., USENIX ATC 2020 (section 4.4); others may use the number for
    /// something else.
    pub fn check_known(&self) -> Result<(), HardwareError> {
        if (self.vendor.as_str(), self.family, self.model) == ("GenuineIntel", 6, 85) {
            return Ok(());
        }
        Err(HardwareError::UnknownProcessor(self.to_string()))
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, family {}, model {}", self.vendor, self.family, self.model)
    }
}
