use anyhow::Context;
use rackpool_shm::host::HostFiles;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread to the processors of a node; `None` leaves it where it is.
pub(crate) fn pin_to_node(node: Option<u32>) -> anyhow::Result<()> {
    let Some(node) = node else { return Ok(()) };
    let nodes = HostFiles::here().nodes();
    let cpus = nodes.into_iter().find(|found| found.id == node).map(|node| node.cpus);
    let cpus = cpus.filter(|cpus| !cpus.is_empty());
    let cpus = cpus.with_context(|| format!("NUMA node {node} has no processors"))?;
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(cpu)?);
    }
    sched_setaffinity(None, &set)
        .with_context(|| format!("can't run on NUMA node {node} (cpuset, taskset)"))
}
