//! A dedicated processor for the data plane's thread. A poll loop that shares its processor keeps
//! all clients waiting, and the kernel's load balancer moves other threads to it now and then. The
//! data plane's thread can therefore be bound to one processor, and the daemon's other threads to
//! the others. The operator keeps other programs away (docs/operating.md).

use std::fmt;

use anyhow::{Context, bail};
use rackpool_shm::host::{HostFiles, NumaNode, list_text, parse_list};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processor of the data plane's thread, and those of the daemon's other threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processor {
    own: u32,
    /// The other processors that this process may use; empty if there are none.
    others: Vec<u32>,
}

/// The NUMA node of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnNode<'a> {
    pub(crate) node: &'a NumaNode,
    /// Why it was chosen, for operators.
    pub(crate) reason: &'a str,
}

impl Processor {
    /// Checks the processor that an operator named. Refuses a processor that does not exist, that
    /// belongs to another NUMA node than the daemon's, or that this process may not use.
    pub(crate) fn choose(
        own: u32,
        node: Option<OwnNode<'_>>,
        machine: &HostFiles,
    ) -> anyhow::Result<Self> {
        let there = parse_list(&machine.sys_text("devices/system/cpu/online").unwrap_or_default());
        // If the kernel lists no processors, the affinity mask below still says which may be used.
        if !there.is_empty() && !there.contains(&own) {
            bail!(
                "--cpu {own}: there is no such processor, this computer has {}: choose one of them",
                list_text(&there)
            );
        }
        if let Some(OwnNode { node, reason }) =
            node.filter(|chosen| !chosen.node.cpus.contains(&own))
        {
            bail!(
                "--cpu {own}: this processor is not of NUMA node {} ({reason}), which has {}: choose one of them, or another --numa-node, or --numa-node none",
                node.id,
                list_text(&node.cpus)
            );
        }
        let allowed = allowed().with_context(|| format!("--cpu {own}"))?;
        if !allowed.contains(&own) {
            bail!(
                "--cpu {own}: this process may use the processors {} only: choose one of them, or allow it that one (taskset, cpuset, CPUAffinity= or AllowedCPUs= of systemd)",
                list_text(&allowed)
            );
        }
        let others = allowed.into_iter().filter(|cpu| *cpu != own).collect();
        Ok(Self { own, others })
    }

    /// Binds the calling thread, the data plane's, to the processor.
    pub(crate) fn take(&self) -> anyhow::Result<()> {
        bind(&[self.own]).with_context(|| {
            format!(
                "can't run on the processor {}: may this process still use it (cpuset)? else choose another --cpu",
                self.own
            )
        })
    }

    /// Keeps a thread (`None`: the calling one) and the threads it will start off the processor. If
    /// there is no other processor, they share it.
    pub(crate) fn leave(&self, thread: Option<Pid>) -> anyhow::Result<()> {
        if self.others.is_empty() {
            return Ok(());
        }
        bind_thread(thread, &self.others).with_context(|| {
            format!(
                "can't run on the processors {}: may this process still use them (cpuset)?",
                list_text(&self.others)
            )
        })
    }

    /// Returns true if the daemon's other threads have no other processor.
    pub(crate) const fn is_shared(&self) -> bool {
        self.others.is_empty()
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread on CPU {}", self.own)?;
        if self.is_shared() {
            f.write_str(" with all others of the daemon, which may use no other CPU")
        } else {
            write!(f, " (others of the daemon on {})", list_text(&self.others))
        }
    }
}

/// Returns the processors that the calling thread may use.
fn allowed() -> anyhow::Result<Vec<u32>> {
    let set = sched_getaffinity(None).context("can't ask which processors may be used")?;
    let is_set = |cpu: &u32| usize::try_from(*cpu).is_ok_and(|cpu| set.is_set(cpu));
    Ok((0..u32::try_from(CpuSet::MAX_CPU)?).filter(is_set).collect())
}

/// Binds the calling thread to these processors.
pub(crate) fn bind(cpus: &[u32]) -> rustix::io::Result<()> {
    bind_thread(None, cpus)
}

fn bind_thread(thread: Option<Pid>, cpus: &[u32]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(*cpu).ok()) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    sched_setaffinity(thread, &set)
}

#[cfg(test)]
mod tests {
    use rackpool_testing::{folder_of, skipped};

    use super::*;

    /// Creates a host description with these processors.
    fn machine(online: &str) -> (tempfile::TempDir, HostFiles) {
        let folder = folder_of(&[("sys/devices/system/cpu/online", online)]);
        let machine = HostFiles::at(folder.path());
        (folder, machine)
    }

    fn refused(own: u32, node: Option<OwnNode<'_>>, machine: &HostFiles) -> String {
        Processor::choose(own, node, machine).unwrap_err().to_string()
    }

    /// Runs `what` in a separate thread, so that the affinity of the other tests does not change.
    fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(what).join().unwrap())
    }

    #[test]
    fn one_that_is_not_there_is_refused() {
        let (_folder, machine) = machine("0-1");
        let said = refused(7, None, &machine);
        assert_eq!(
            said,
            "--cpu 7: there is no such processor, this computer has 0-1: choose one of them"
        );
    }

    #[test]
    fn one_of_another_node_is_refused() {
        let (_folder, machine) = machine("0-7");
        let node = NumaNode {
            id: 1,
            cpus: vec![4, 5, 6, 7],
            memory_bytes: 1 << 30,
            free_bytes: 1 << 30,
            distances: vec![20, 10],
        };
        let said = refused(0, Some(OwnNode { node: &node, reason: "the RDMA card's" }), &machine);
        assert!(said.contains("not of NUMA node 1 (the RDMA card's), which has 4-7: ch"), "{said}");
    }

    #[test]
    fn one_that_may_not_be_used_is_refused() {
        let all = allowed().unwrap();
        let [first, second, ..] = all[..] else {
            return skipped("this process may use one processor");
        };
        let said = apart(|| {
            bind(&[first]).unwrap();
            refused(second, None, &HostFiles::here())
        });
        let only = format!("--cpu {second}: this process may use the processors {first} only: ch");
        assert!(said.starts_with(&only), "{said}");
    }

    #[test]
    fn one_thread_takes_it_and_the_others_leave_it() {
        let all = allowed().unwrap();
        let own = *all.last().unwrap();
        let processor = Processor::choose(own, None, &HostFiles::here()).unwrap();
        let (taken, left) = apart(|| {
            processor.leave(None).unwrap();
            let left = allowed().unwrap();
            // A thread that has left the processor can be bound to it: the data plane's thread is
            // started by such a thread.
            processor.take().unwrap();
            (allowed().unwrap(), left)
        });
        assert_eq!(taken, [own]);
        let said = processor.to_string();
        if all.len() == 1 {
            assert!(processor.is_shared());
            assert_eq!(left, all);
            assert!(said.contains("no other CPU"), "{said}");
        } else {
            assert_eq!(left, all[..all.len() - 1]);
            let others = list_text(&left);
            assert_eq!(said, format!("thread on CPU {own} (others of the daemon on {others})"));
        }
    }
}
