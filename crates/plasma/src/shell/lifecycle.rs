use std::sync::Arc;

use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rackpool_client::{ClientOptions, Pool};
use rackpool_objects::Store;
use rackpool_output::UsageError;

use super::listener::Listener;
use super::look_ups::{LOOK_UP_THREADS, LookUps};
use super::options::PlasmaOptions;
use super::private_pool::PrivatePool;
use super::server::Server;
use super::store_memory::{StoreMemory, Stores};

/// Serves until a signal arrives, standard input ends, or the service fails.
///
/// # Errors
/// If the pool, the store or the socket do not allow it, or the rack's daemon has forgotten this
/// client.
pub fn run(options: &PlasmaOptions) -> anyhow::Result<()> {
    let signals = catch_signals()?;
    let external = options.external_store()?;
    let listener = Listener::bind(&options.socket)?;
    let private = match &options.dir {
        None => Some(PrivatePool::start(options)?),
        Some(_) => None,
    };
    let client = match (&private, &options.dir) {
        (Some(private), _) => private.client_options(),
        (None, dir) => ClientOptions::new(dir.clone().unwrap_or_default(), options.rack),
    };
    let served = serve(options, client, external, listener, &signals);
    served.and(private.map_or(Ok(()), PrivatePool::stop))
}

/// Serves a pool that runs.
fn serve(
    options: &PlasmaOptions,
    client: ClientOptions,
    external: Option<&str>,
    listener: Listener,
    signals: &SignalFd,
) -> anyhow::Result<()> {
    // The main thread, those that look up, and some that are just ending.
    let pool = Arc::new(Pool::open(client.threads(LOOK_UP_THREADS + 4))?);
    if options.memory > pool.frames_bytes() {
        bail!(UsageError::new(format!(
            "-m {} is more than the {} B of {}: give less, or a pool with larger racks",
            options.memory,
            pool.frames_bytes(),
            pool.rack()
        )));
    }
    let open = |name: &str| {
        Store::open_or_create(Arc::clone(&pool), name)
            .with_context(|| format!("can't open the object store '{name}'"))
    };
    let stores =
        Stores { objects: open(&options.store)?, external: external.map(open).transpose()? };
    let look_ups = LookUps::start(&stores)?;
    let memory = StoreMemory::new(Arc::clone(&pool), stores);
    let mut server = Server::new(options.memory, pool, memory, look_ups, listener)?;
    rackpool_output::banner(format_args!(
        "rackpool-plasma serves the store '{}' of {} at {} with {} B",
        options.store,
        server.rack(),
        options.socket.display(),
        options.memory
    ));
    server.run(signals, options.stop_with_stdin)
}

fn catch_signals() -> anyhow::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}
