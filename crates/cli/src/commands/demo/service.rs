//! YCSB through the key-value service: an instance in every rack, all with the same records.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rackpool_cluster::{Child, Cluster};
use rackpool_ycsb::{Progress, RespStores, Server, Session, WorkloadName};

use super::size::Size;

/// How long an instance may take until it serves.
const START: Duration = Duration::from_secs(20);

/// Runs the workloads through the service.
pub(super) fn run(size: &Size, cluster: &Cluster) -> anyhow::Result<Session> {
    let plan = rackpool_ycsb::YcsbOptions {
        workloads: vec![WorkloadName::A, WorkloadName::C],
        records: size.records,
        operations: size.operations,
        threads: size.threads,
        verify: true,
        ..Default::default()
    }
    .plan()?;
    let mut instances = Instances::start(cluster)?;
    let servers = instances.sockets.iter().cloned().map(Server::unix).collect();
    let session =
        rackpool_ycsb::run(&plan, &RespStores::new(servers, &plan), Progress::new(size.quiet))?;
    instances.stop()?;
    Ok(session)
}

/// One instance in every rack.
struct Instances {
    processes: Vec<Child>,
    sockets: Vec<PathBuf>,
}

impl Instances {
    fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let options = cluster.options();
        let mut instances = Self { processes: Vec::new(), sockets: Vec::new() };
        for rack in 0..options.racks {
            let socket = options.dir.join(format!("kv-{rack}.sock"));
            let arguments = [
                ("--dir", options.dir.display().to_string()),
                ("--rack", rack.to_string()),
                ("--table", "service".to_owned()),
                ("--threads", "1".to_owned()),
                ("--unix", socket.display().to_string()),
            ];
            let log = options.dir.join(format!("kv-{rack}.log"));
            let mut process = Child::start("rackpool-kv", &arguments, &log)?;
            process.wait_until(START, || UnixStream::connect(&socket).is_ok())?;
            instances.processes.push(process);
            instances.sockets.push(socket);
        }
        Ok(instances)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().for_each(Child::terminate);
        self.processes.iter_mut().try_for_each(Child::wait_or_kill)
    }
}
