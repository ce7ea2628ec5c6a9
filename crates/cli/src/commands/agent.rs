//! `rackpool agent`: takes part in casts for a rack, and brings its objects back from files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool};
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{AgentEvent, CastAgent};
use rackpool_output::{chain, outln};

use super::objects::printable_id;
use super::roots::{NO_LOCAL_RACK, local_member, member_here};
use super::signals::Interrupts;
use crate::pool_arguments::WhichPool;

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rack of this host that the agent serves [default: the first one].
    #[arg(long, value_name = "RACK")]
    rack: Option<u16>,
    #[command(flatten)]
    which: WhichPool,
}

/// Serves until a signal ends it.
///
/// # Errors
/// If the pool can't be used, or no longer.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let interrupts = Interrupts::catch()?;
    let status = options.which.server()?.status()?;
    let member = match options.rack {
        Some(rack) => member_here(&status, RackId(rack))?,
        None => local_member(&status).context(NO_LOCAL_RACK)?,
    };
    let client = ClientOptions::with_socket(&member.control_path)
        .threads(CastAgent::THREADS)
        .exact_daemon(true);
    let agent = CastAgent::new(Arc::new(Pool::open(client)?));
    outln!("serving {}", member.rack)?;
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| agent.serve(&is_stopped, tell));
        let waited = interrupts.wait(|| served.is_finished().then_some(()));
        is_stopped.store(true, Ordering::Relaxed);
        let served = served.join().map_err(|_| anyhow::anyhow!("the agent has failed"))?;
        served?;
        waited.map(drop)
    })
}

/// Tells what became of a request. That nobody reads it ends no cast.
fn tell(event: AgentEvent) {
    let _ = match event {
        AgentEvent::Received { id, bytes, took } => outln!(
            "received the object '{}', {}, in {:.1} ms",
            printable_id(id),
            ByteSize(bytes),
            took.as_secs_f64() * 1e3
        ),
        AgentEvent::Restored { id, bytes, took } => outln!(
            "brought the object '{}', {}, back into memory in {:.1} ms",
            printable_id(id),
            ByteSize(bytes),
            took.as_secs_f64() * 1e3
        ),
        AgentEvent::Adopted { id, took } => outln!(
            "took the object '{}' from another rack in {:.1} ms",
            printable_id(id),
            took.as_secs_f64() * 1e3
        ),
        AgentEvent::Failed { id: Some(id), error } => {
            outln!("did not bring the object '{}': {}", printable_id(id), chain(&error))
        }
        AgentEvent::Failed { id: None, error } => outln!("{}", chain(&error)),
    };
}
