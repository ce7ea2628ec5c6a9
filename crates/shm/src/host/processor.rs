use std::fmt;

use super::HostFiles;

/// A processor, as `/proc/cpuinfo` describes the first one.
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
    /// Returns true if the processor is known to have `IIO LLC WAYS` in register 0xC8B: Intel's
    /// family 6, model 85 (Skylake and Cascade Lake servers; Farshin et al., USENIX ATC 2020,
    /// section 4.4). Others may use the number for something else.
    #[must_use]
    pub fn has_device_ways_register(&self) -> bool {
        (self.vendor.as_str(), self.family, self.model) == ("GenuineIntel", 6, 85)
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, family {}, model {}", self.vendor, self.family, self.model)
    }
}

impl HostFiles {
    /// The processor; `None` if the kernel does not say what it is.
    #[must_use]
    pub fn processor(&self) -> Option<Processor> {
        let text = self.proc_text("cpuinfo")?;
        let value = |wanted: &str| {
            text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == wanted).then(|| value.trim().to_owned())
            })
        };
        Some(Processor {
            vendor: value("vendor_id")?,
            family: value("cpu family")?.parse().ok()?,
            model: value("model")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;

    #[test]
    fn only_processors_that_are_known_have_the_register() {
        for (vendor, model, has) in
            [("GenuineIntel", 85, true), ("GenuineIntel", 106, false), ("AuthenticAMD", 85, false)]
        {
            let text = format!(
                "vendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: x\n"
            );
            let (_folder, machine) = fixture(&[("proc/cpuinfo", &text)]);
            let processor = machine.processor().unwrap();
            assert_eq!(processor.has_device_ways_register(), has, "{processor}");
            assert_eq!(processor.to_string(), format!("{vendor}, family 6, model {model}"));
        }
        let (_folder, machine) = fixture(&[("proc/cpuinfo", "vendor_id\t: GenuineIntel\n")]);
        assert_eq!(machine.processor(), None);
    }
}
