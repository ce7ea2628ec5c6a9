use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rackpool_client::Pool;
use rackpool_kv::Table;
use rackpool_model::ByteSize;
use rackpool_output::UsageError;
use rackpool_sync::atomic::{AtomicBool, Ordering};
use rand::Rng;

use crate::auth_throttle::AuthThrottle;
use crate::client_memory::ClientMemory;
use crate::large::LargeStrings;
use crate::memory_limit::{MemoryLimit, count, watch_memory};
use crate::metrics::ServiceMetrics;
use crate::open;
use crate::server::{Acceptor, LONG_THREADS, Listeners, LongThread, Mailbox, Worker};
use crate::service_options::ServiceOptions;
use crate::shared::{ClientTable, Password, ServiceState, Stats};
use crate::store::Store;
use crate::sweep::{sweep_keys, sweep_maps};
use crate::watches::Watches;

/// The most open files that are not connections.
const OTHER_FILES: u64 = 256;
/// Threads with metrics that serve no connections: those for long commands, `kv-accept`,
/// `kv-expiry` and `kv-memory`, in this order.
const OTHER_THREADS: usize = LONG_THREADS + 3;
/// The default of Redis.
const DEFAULT_CLIENTS: u32 = 10_000;
const DEFAULT_LISTEN: &str = "127.0.0.1:6379";
/// The space of a page that key and value of an entry leave free: for its header, and for the lock
/// of a transaction that replaces the value by a large string or back.
const ENTRY_OVERHEAD: u64 = 512;

/// Serves until a signal arrives, standard input ends, or the service fails.
///
/// # Errors
/// The pool, the sockets or the limits of this process do not allow it, or the rack's daemon has
/// forgotten this client.
pub fn run(options: &ServiceOptions) -> anyhow::Result<()> {
    let signals = catch_signals()?;
    let listen = match (options.listen, &options.unix) {
        (None, None) => Some(DEFAULT_LISTEN.parse()?),
        (listen, _) => listen,
    };
    if let Some(address) = listen {
        require_loopback(address)?;
    }
    options.metrics.map(rackpool_metrics::check).transpose().map_err(UsageError::new)?;
    let password = password(options)?;
    let max_clients = max_clients(options.max_clients)?;
    let client_memory = client_memory(options)?;
    let threads = threads(options);
    let listeners = Listeners::bind(listen, options.unix.as_deref())?;
    let pool = open::pool(options, threads)?;
    let table = open::table(&pool, &options.table)?;
    let nodes = open::table(&pool, &format!("{}/nodes", options.table))?.with_records(&table);
    let memory = MemoryLimit::new(options.max_memory.0, options.max_memory_policy);
    let longest_entry = usize::try_from(pool.page_bytes().saturating_sub(ENTRY_OVERHEAD))?;
    let arriving = Arc::clone(&memory.arriving);
    let strings = Arc::new(LargeStrings::new(&nodes, longest_entry, arriving));
    let shared = Arc::new(ServiceState {
        longest_entry,
        pool,
        table: options.table.clone(),
        listen: listeners.address(),
        listeners: Mutex::new(Some(listeners)),
        unix: options.unix.clone(),
        password,
        serves_any_user: options.any_user,
        max_clients: max_clients as usize,
        client_memory: ClientMemory::new(client_memory),
        memory,
        auth_throttle: AuthThrottle::new(Instant::now()),
        started: Instant::now(),
        run_id: format!("{:032x}{:08x}", rand::rng().random::<u128>(), std::process::id()),
        clients: ClientTable::default(),
        threads: threads.into(),
        stats: (0..usize::from(threads) + OTHER_THREADS).map(|_| Stats::default()).collect(),
        reset: Mutex::default(),
        watches: Arc::default(),
        fatal: Mutex::new(None),
        ends: AtomicBool::new(false),
        keyspace: Mutex::new(None),
        wants_memory: AtomicBool::new(false),
    });
    if options.max_memory.0 != 0 {
        // The limit holds from the first command on.
        count(&[table.clone(), nodes.clone()], &shared.memory);
    }
    if let Some(address) = options.metrics {
        rackpool_metrics::start(address, Arc::new(ServiceMetrics(Arc::clone(&shared))))?;
    }
    let watches = Arc::clone(&shared.watches);
    let tables = Tables { keys: table, nodes, strings, watches };
    let Running { mailboxes, threads } = start(&shared, &tables)?;
    announce(options, &shared);
    if options.stop_with_stdin {
        stop_with_stdin(&shared)?;
    }
    wait(&signals, &shared)?;
    for mailbox in mailboxes.iter() {
        mailbox.wake()?;
    }
    for thread in threads {
        if thread.join().is_err() {
            bail!("a thread of the service ended unexpectedly");
        }
    }
    let fatal = shared.fatal.lock().unwrap_or_else(PoisonError::into_inner).take();
    fatal.map_or(Ok(()), |reason| Err(anyhow::anyhow!(reason)))
}

/// Requires a loopback address: traffic is not encrypted, and the service has no TLS.
fn require_loopback(address: SocketAddr) -> anyhow::Result<()> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    bail!(UsageError::new(format!(
        "--listen {address} is not on this host alone, and what clients send is not encrypted: listen \
         on 127.0.0.1 or --unix, run an instance on each host, or let a TLS proxy listen there"
    )))
}

/// The tables that are served.
struct Tables {
    keys: Table<Arc<Pool>>,
    nodes: Table<Arc<Pool>>,
    strings: Arc<LargeStrings>,
    watches: Arc<Watches>,
}

impl Tables {
    /// A thread's access to the tables.
    fn store(&self) -> Store {
        let (strings, watches) = (Arc::clone(&self.strings), Arc::clone(&self.watches));
        Store::new(self.keys.handle(), self.nodes.handle(), strings, watches)
    }

    /// As [`store`](Self::store), for a thread that executes commands.
    fn recording_store(&self, shared: &ServiceState) -> Store {
        let mut store = self.store();
        store.keys.record_use(Some(Arc::clone(&shared.memory.uses)));
        store
    }
}

/// Ends the service if its thread panics: otherwise the connections of that thread would hang.
struct EndsIfItPanics<'a>(&'a ServiceState);

impl Drop for EndsIfItPanics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end("a thread of the service has panicked");
        }
    }
}

/// The threads of the service.
struct Running {
    mailboxes: Arc<[Mailbox]>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts all threads.
fn start(shared: &Arc<ServiceState>, tables: &Tables) -> anyhow::Result<Running> {
    let (polls, mailboxes): (Vec<_>, Vec<_>) = (0..shared.threads())
        .map(|_| Worker::prepare())
        .collect::<std::io::Result<Vec<_>>>()
        .context("can't create an event loop")?
        .into_iter()
        .unzip();
    let mailboxes: Arc<[Mailbox]> = mailboxes.into();
    let stores = std::array::from_fn(|_| tables.recording_store(shared));
    let (to_long, long_threads) = LongThread::prepare(stores, shared, &mailboxes);
    let mut threads = Vec::new();
    for (thread, poll) in polls.into_iter().enumerate() {
        let worker = Worker::new(
            poll,
            thread,
            tables.recording_store(shared),
            Arc::clone(shared),
            Arc::clone(&mailboxes),
            to_long.clone(),
        );
        threads.push(spawn(&format!("kv-{thread}"), shared, |shared| {
            if let Err(error) = worker.run() {
                shared.end(&format!("a thread can't wait for events: {error}"));
            }
        })?);
    }
    for (number, long) in long_threads.into_iter().enumerate() {
        threads.push(spawn(&format!("kv-long-{number}"), shared, move |_| long.run())?);
    }
    let place = shared.threads() + LONG_THREADS;
    let acceptor = Acceptor::new(Arc::clone(shared), Arc::clone(&mailboxes), place)?;
    threads.push(spawn("kv-accept", shared, |shared| {
        if let Err(error) = acceptor.run() {
            shared
                .end(&format!("the thread that accepts connections can't wait for them: {error}"));
        }
    })?);
    let (keys, maps) = (tables.store(), tables.store());
    threads.push(spawn("kv-expiry", shared, move |shared| sweep_keys(keys, shared, place + 1))?);
    threads.push(spawn("kv-maps", shared, |shared| sweep_maps(maps, shared))?);
    let (store, counted) = (tables.store(), [tables.keys.clone(), tables.nodes.clone()]);
    threads.push(spawn("kv-memory", shared, move |shared| {
        watch_memory(store, &counted, shared, place + 2);
    })?);
    Ok(Running { mailboxes, threads })
}

/// Starts a thread that the service cannot do without.
fn spawn(
    name: &str,
    shared: &Arc<ServiceState>,
    work: impl FnOnce(&ServiceState) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = EndsIfItPanics(&shared);
        work(&shared);
    })
}

/// The limit of the memory of all connections. Less than `LEAST` does not suffice for normal use.
fn client_memory(options: &ServiceOptions) -> anyhow::Result<usize> {
    const LEAST: u64 = 16 << 20;
    let limit = options.max_client_memory;
    if limit.0 < LEAST {
        bail!(UsageError::new(format!(
            "--max-client-memory {limit} is less than well-behaved clients need: give at \
             least {}",
            ByteSize(LEAST)
        )));
    }
    Ok(usize::try_from(limit.0).unwrap_or(usize::MAX))
}

fn threads(options: &ServiceOptions) -> u16 {
    const MOST: usize = 256;
    options.threads.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // One core is left to the rack's daemon and the clients: two threads on two cores were
        // slower.
        u16::try_from(cores.saturating_sub(1).clamp(1, MOST)).unwrap_or(1)
    })
}

fn announce(options: &ServiceOptions, shared: &ServiceState) {
    let places = shared.listen.map(|address| address.to_string());
    let places = places.into_iter().chain(options.unix.iter().map(|p| p.display().to_string()));
    let places: Vec<_> = places.collect();
    rackpool_output::banner(format_args!(
        "rackpool-kv serves the table '{}' of {} at {} with {} threads",
        shared.table,
        shared.pool.rack(),
        places.join(" and "),
        shared.threads()
    ));
}

fn password(options: &ServiceOptions) -> anyhow::Result<Option<Password>> {
    let Some(path) = &options.password_file else {
        return Ok(options.password.as_deref().map(Password::new));
    };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read the password in {}", path.display()))?;
    let line = text.lines().next().unwrap_or_default();
    ensure!(!line.is_empty(), "{} has no password in its first line", path.display());
    Ok(Some(Password::new(line)))
}

/// The most connections. Each is an open file.
fn max_clients(wanted: Option<u32>) -> anyhow::Result<u32> {
    let (files_allowed, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let allowed = u32::try_from(files_allowed.saturating_sub(OTHER_FILES)).unwrap_or(u32::MAX);
    let max_clients = wanted.unwrap_or(DEFAULT_CLIENTS.min(allowed));
    let files = u64::from(max_clients) + OTHER_FILES;
    ensure!(
        max_clients > 0 && files_allowed >= files,
        "{max_clients} connections need {files} open files, this process may have {files_allowed}: raise \
         the limit (ulimit -Hn, LimitNOFILE= of systemd) or lower --max-clients"
    );
    if wanted.is_none() && max_clients < DEFAULT_CLIENTS {
        tracing::warn!(
            "at most {max_clients} connections are served, since this process may open only {files_allowed} files: raise the limit (ulimit -Hn, LimitNOFILE= of systemd) to serve more"
        );
    }
    Ok(max_clients)
}

fn catch_signals() -> anyhow::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// Waits until the service must end.
fn wait(signals: &SignalFd, shared: &ServiceState) -> anyhow::Result<()> {
    while !shared.has_to_end() {
        if signals.read_signal()?.is_some() {
            shared.ends.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn stop_with_stdin(shared: &Arc<ServiceState>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    let name = "stdin".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|read| read > 0) {}
        shared.ends.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}
