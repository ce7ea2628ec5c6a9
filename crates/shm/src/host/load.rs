use std::collections::BTreeMap;
use std::time::Duration;

use super::{HostFiles, NumaNode};

/// Time since the start of the host, of each processor, in ticks of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTimes(BTreeMap<u32, Times>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    busy: u64,
    all: u64,
}

impl ProcessorTimes {
    /// The share of the time since `earlier` in which the node's processors were busy, from 0 to 1.
    /// `None` for a node without processors, or if too little time has passed to tell.
    #[must_use]
    pub fn busy_since(&self, earlier: &Self, node: &NumaNode) -> Option<f64> {
        let (mut busy, mut all) = (0, 0);
        for cpu in &node.cpus {
            let (Some(now), Some(then)) = (self.0.get(cpu), earlier.0.get(cpu)) else { continue };
            busy += now.busy.saturating_sub(then.busy);
            all += now.all.saturating_sub(then.all);
        }
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

impl HostFiles {
    /// The processors' times, from `/proc/stat`; empty if it can't be read.
    #[must_use]
    pub fn processor_times(&self) -> ProcessorTimes {
        let stat = self.proc_text("stat").unwrap_or_default();
        ProcessorTimes(stat.lines().filter_map(times).collect())
    }

    /// The share of the time in which the processors of each node are busy, from 0 to 1, measured
    /// over a time. The kernel counts in steps of some milliseconds.
    #[must_use]
    pub fn node_load(&self, over: Duration) -> BTreeMap<u32, f64> {
        let before = self.processor_times();
        std::thread::sleep(over);
        let after = self.processor_times();
        let nodes = self.nodes().into_iter();
        nodes.filter_map(|node| Some((node.id, after.busy_since(&before, &node)?))).collect()
    }
}

/// A line `cpu3 user nice system idle iowait irq softirq steal …`; the times of guests are part of
/// the first two.
fn times(line: &str) -> Option<(u32, Times)> {
    let mut words = line.split_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
    let [_, _, _, idle, waiting, ..] = ticks[..] else { return None };
    let all = ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    Some((cpu, Times { busy: all.saturating_sub(idle).saturating_sub(waiting), all }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn a_nodes_processors_are_as_busy_as_the_kernel_counted() {
        let at = |stat: &str| {
            let (_folder, machine) = fixture(&[("proc/stat", stat)]);
            machine.processor_times()
        };
        let earlier = at("cpu  9 9 9 9 9\ncpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 0 0 0 100 0\nintr 7\n");
        let now = at("cpu  9 9 9 9 9\ncpu0 16 1 1 92 0 0 0 0 9 9\ncpu1 0 0 0 108 2\nintr 7\n");
        let node = |cpus: &[u32]| NumaNode { cpus: cpus.to_vec(), ..NumaNode::default() };
        assert_eq!(now.busy_since(&earlier, &node(&[0])), Some(0.8));
        assert_eq!(now.busy_since(&earlier, &node(&[1])), Some(0.0));
        assert_eq!(now.busy_since(&earlier, &node(&[0, 1])), Some(0.4));
        for unknown in [&[][..], &[7]] {
            assert_eq!(now.busy_since(&earlier, &node(unknown)), None);
        }
        assert_eq!(now.busy_since(&now, &node(&[0])), None, "no time has passed");
        // The clock of a processor that was taken away and given back.
        assert_eq!(earlier.busy_since(&now, &node(&[0])), None);
    }

    #[test]
    fn what_the_kernel_does_not_write_is_no_time() {
        for text in ["", "cpu0", "cpu0 1 2 3", "cpux 1 2 3 4 5", "cpu0 1 2 3 4 x"] {
            assert_eq!(times(text), None, "{text}");
        }
        let most = format!("cpu0 {0} {0} {0} {0} {0}", u64::MAX);
        assert_eq!(times(&most), Some((0, Times { busy: 0, all: u64::MAX })));
    }

    #[test]
    fn this_host_has_times() {
        let machine = HostFiles::here();
        assert!(machine.processor_times().0.values().any(|times| times.all > 0));
    }
}
