//! Facts about the machine of a run.

use std::fs::read_to_string;

/// Returns processor, cores, memory, kernel and system, as far as Linux reports them.
pub fn facts() -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map(|cores| cores.to_string());
    let read = |file| read_to_string(file).unwrap_or_default();
    [
        ("Processor", field(&read("/proc/cpuinfo"), "model name", ':')),
        ("Cores", cores.ok()),
        ("Memory", field(&read("/proc/meminfo"), "MemTotal", ':').and_then(|kib| gibibytes(&kib))),
        ("Kernel", Some(read("/proc/sys/kernel/osrelease").trim().to_owned())),
        ("System", field(&read("/etc/os-release"), "PRETTY_NAME", '=')),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value.filter(|value| !value.is_empty())?)))
    .collect()
}

/// Returns the value in the first line `name <separator> value`, without quotes.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(separator)?;
        (found.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// `24579940 kB` (which means KiB) as `23.4 GiB`.
fn gibibytes(text: &str) -> Option<String> {
    let kib: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(format!("{:.1} GiB", kib / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_texts_are_understood() {
        let cpu = "processor\t: 0\nmodel name\t: AMD EPYC 9B14\nprocessor\t: 1\n";
        assert_eq!(field(cpu, "model name", ':').unwrap(), "AMD EPYC 9B14");
        let os = "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(field(os, "PRETTY_NAME", '=').unwrap(), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(gibibytes("24579940 kB").unwrap(), "23.4 GiB");
        assert_eq!(field(cpu, "flags", ':'), None);
    }

    #[test]
    fn this_machine_has_cores_and_a_kernel() {
        let facts = facts();
        for name in ["Cores", "Kernel", "Memory"] {
            assert!(facts.iter().any(|(found, _)| found == name), "{name} of {facts:?}");
        }
    }
}
