//! The same workloads through Redis, where this machine has it.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rackpool_cluster::{unique_name, wait_for};
use rackpool_report::Redis;
use rackpool_ycsb::{Plan, Progress, RespStores, Server, WorkloadResult};

use super::leftovers::Leftovers;
use super::redis_server::{PROGRAM, RedisServer, log, socket, version};
use super::size::Size;

/// How long the server may take until it serves.
const START: Duration = Duration::from_secs(20);

/// Runs the workloads through a Redis server of the demo's own.
///
/// # Errors
/// If the workloads can't be planned. A Redis that is missing or fails is a result.
pub(super) fn run(size: &Size, leftovers: &Leftovers) -> anyhow::Result<Redis> {
    let (points, scans) = size.plans()?;
    let server = match version(PROGRAM) {
        Ok(server) => server,
        Err(why) => return Ok(Redis::NotCompared { why }),
    };
    let progress = Progress::new(size.quiet);
    let measured = measure(&points, &scans, progress, leftovers);
    Ok(match measured {
        Ok(results) => Redis::Compared { server, results },
        Err(error) => Redis::NotCompared { why: format!("{server} did not serve ({error:#})") },
    })
}

fn measure(
    points: &Plan,
    scans: &Plan,
    progress: Progress,
    leftovers: &Leftovers,
) -> anyhow::Result<Vec<WorkloadResult>> {
    let folder = std::env::temp_dir().join(unique_name()?);
    let running = leftovers.start_redis(|| RedisServer::start(&folder))?;
    let socket = socket(&folder);
    let serves = || UnixStream::connect(&socket).is_ok();
    if !wait_for(START, || running.has_ended() || serves()) || running.has_ended() {
        let log = std::fs::read_to_string(log(&folder)).unwrap_or_default();
        anyhow::bail!(
            "the last line of its log: {}",
            log.trim_end().lines().last().unwrap_or_default()
        );
    }
    let stores = RespStores::new(vec![Server::unix(socket)], points);
    let mut session = rackpool_ycsb::run(points, &stores, progress)?;
    session.workloads.extend(rackpool_ycsb::run(scans, &stores, progress)?.workloads);
    Ok(session.load.into_iter().chain(session.workloads).collect())
}
