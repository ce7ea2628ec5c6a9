//! State that all threads of the service share. No data operation depends on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rackpool_client::Pool;
use rackpool_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::activity::Activity;
use crate::auth_throttle::AuthThrottle;
use crate::client_memory::ClientMemory;
use crate::memory_limit::{Evicted, MemoryLimit};
use crate::server::Listeners;
use crate::store::Keyspace;
use crate::watches::Watches;

/// State that all threads share.
#[derive(Debug)]
pub struct ServiceState {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The name of the table.
    pub table: String,
    /// The TCP address that was bound.
    pub listen: Option<SocketAddr>,
    /// The path of the Unix socket.
    pub unix: Option<PathBuf>,
    /// The listening sockets; `None` once the service ends.
    pub listeners: Mutex<Option<Listeners>>,
    /// The password that clients must send first.
    pub password: Option<Password>,
    /// Serve every user of the host even without a password.
    pub serves_any_user: bool,
    /// The most connections.
    pub max_clients: usize,
    /// The memory that all connections hold together, and its limit.
    pub client_memory: ClientMemory,
    /// The memory that the entries take in the pool, and its limit.
    pub memory: MemoryLimit,
    /// Recent wrong passwords.
    pub auth_throttle: AuthThrottle,
    /// The most bytes of key and value in an entry; a longer string is a large one.
    pub longest_entry: usize,
    /// When the service was started.
    pub started: Instant,
    /// Random, new at each start.
    pub run_id: String,
    /// The connections.
    pub clients: ClientTable,
    /// The number of threads that serve connections.
    pub threads: usize,
    /// The metrics of each thread: first of the threads that serve connections, then of the threads
    /// for long commands, then of the acceptor and of the threads that expire and evict keys.
    pub stats: Box<[Stats]>,
    /// The totals at the last reset.
    pub reset: Mutex<Totals>,
    /// The keys that connections watch.
    pub watches: Arc<Watches>,
    /// The reason for which the service must end, if it failed.
    pub fatal: Mutex<Option<String>>,
    /// Set when the service ends.
    pub ends: AtomicBool,
    /// The last count of `INFO`.
    pub keyspace: Mutex<Option<KeyspaceCount>>,
    /// Set when a command found the pool full: the sweep then hurries to free unnamed maps.
    pub wants_memory: AtomicBool,
}

/// A count of the keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyspaceCount {
    /// The result.
    pub keyspace: Keyspace,
    /// When the count ended.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}

/// A password. The time of a comparison does not depend on the position of the first difference.
#[derive(Clone)]
pub struct Password(Vec<u8>);

impl Password {
    /// Wraps a password.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// The password in clear, for authenticated clients.
    #[must_use]
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Whether `said` is the password.
    #[must_use]
    pub fn is(&self, said: &[u8]) -> bool {
        let different = self.0.iter().zip(said).fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == said.len() && different == 0
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

/// A counter that one thread increments and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `by`. Only the counter's own thread may call this.
    #[inline]
    pub fn add(&self, by: u64) {
        // There is only one writer.
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The metrics of a thread, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    /// Commands executed.
    pub commands: Counter,
    /// Commands that failed.
    pub errors: Counter,
    /// Connections accepted.
    pub connections: Counter,
    /// Connections refused.
    pub rejected: Counter,
    /// Connections closed because all connections together held too much memory.
    pub evicted: Counter,
    /// Wrong passwords.
    pub auth_failures: Counter,
    /// Expired keys that were deleted.
    pub expired: Counter,
    /// Keys that were evicted.
    pub keys_evicted: Counter,
}

impl Stats {
    /// Counts evicted keys. Only the thread of these metrics may call this.
    pub fn note_evicted(&self, Evicted { keys, expired }: Evicted) {
        self.keys_evicted.add(keys);
        self.expired.add(expired);
    }
}

/// The sums of the metrics of all threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// As in [`Stats`].
    pub commands: u64,
    /// As in [`Stats`].
    pub errors: u64,
    /// As in [`Stats`].
    pub connections: u64,
    /// As in [`Stats`].
    pub rejected: u64,
    /// As in [`Stats`].
    pub evicted: u64,
    /// As in [`Stats`].
    pub auth_failures: u64,
    /// As in [`Stats`].
    pub expired: u64,
    /// As in [`Stats`].
    pub keys_evicted: u64,
}

impl ServiceState {
    /// The number of threads that serve connections.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Whether only processes of this user and of root are served. This is so without a password,
    /// unless `--any-user` is set.
    #[must_use]
    pub const fn is_for_own_user(&self) -> bool {
        self.password.is_none() && !self.serves_any_user
    }

    /// Stops listening. Called before the first connection is closed, so that a client that
    /// reconnects finds no service.
    pub fn close_listeners(&self) {
        drop(self.listeners.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The metrics of a thread.
    #[inline]
    #[must_use]
    pub fn stats(&self, thread: usize) -> &Stats {
        &self.stats[thread]
    }

    /// The metrics of all threads since they were last reset.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let (now, before) =
            (self.sums(), *self.reset.lock().unwrap_or_else(PoisonError::into_inner));
        Totals {
            commands: now.commands.wrapping_sub(before.commands),
            errors: now.errors.wrapping_sub(before.errors),
            connections: now.connections.wrapping_sub(before.connections),
            rejected: now.rejected.wrapping_sub(before.rejected),
            evicted: now.evicted.wrapping_sub(before.evicted),
            auth_failures: now.auth_failures.wrapping_sub(before.auth_failures),
            expired: now.expired.wrapping_sub(before.expired),
            keys_evicted: now.keys_evicted.wrapping_sub(before.keys_evicted),
        }
    }

    /// Resets the metrics that [`totals`](Self::totals) returns to 0.
    pub fn reset_totals(&self) {
        *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = self.sums();
    }

    /// The metrics of all threads since the service was started.
    #[must_use]
    pub fn sums(&self) -> Totals {
        self.stats.iter().fold(Totals::default(), |sum, stats| Totals {
            commands: sum.commands.wrapping_add(stats.commands.get()),
            errors: sum.errors.wrapping_add(stats.errors.get()),
            connections: sum.connections.wrapping_add(stats.connections.get()),
            rejected: sum.rejected.wrapping_add(stats.rejected.get()),
            evicted: sum.evicted.wrapping_add(stats.evicted.get()),
            auth_failures: sum.auth_failures.wrapping_add(stats.auth_failures.get()),
            expired: sum.expired.wrapping_add(stats.expired.get()),
            keys_evicted: sum.keys_evicted.wrapping_add(stats.keys_evicted.get()),
        })
    }

    /// Ends the service with an error, whose text is `reason`.
    pub fn end(&self, reason: &str) {
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.get_or_insert_with(|| reason.to_owned());
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether the service is ending.
    #[must_use]
    pub fn has_to_end(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// A connection as `CLIENT LIST` and `CLIENT KILL` see it.
#[derive(Clone, Debug)]
pub struct ClientEntry {
    /// The peer's address.
    pub address: String,
    /// The local address.
    pub local: String,
    /// Whether it speaks version 3 of the protocol.
    pub resp3: bool,
    /// The name that the client has set.
    pub name: String,
    /// The client library that the client has named.
    pub library: String,
    /// The version of that library.
    pub library_version: String,
    descriptor: RawFd,
    /// The flag of the socket's kind.
    kind: &'static str,
    /// The memory of the connection without its buffers, in bytes.
    own_bytes: usize,
    activity: Arc<Activity>,
    /// Set when the connection is to be closed.
    is_killed: bool,
}

/// The connections by their ids.
#[derive(Debug, Default)]
pub struct ClientTable {
    all: Mutex<BTreeMap<u64, ClientEntry>>,
    kills: AtomicU64,
}

impl ClientEntry {
    /// A new connection: its addresses, its descriptor and the flag of its socket's kind, and its
    /// memory without buffers, in bytes.
    #[must_use]
    pub fn new(
        [address, local]: [String; 2],
        descriptor: RawFd,
        kind: &'static str,
        own_bytes: usize,
        activity: &Arc<Activity>,
    ) -> Self {
        Self {
            address,
            local,
            resp3: false,
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            descriptor,
            kind,
            own_bytes: own_bytes + size_of::<Self>(),
            activity: Arc::clone(activity),
            is_killed: false,
        }
    }

    /// The connection's line in `CLIENT LIST`: the fields of Redis 7.0 in order, then those of the
    /// client library, which later releases have.
    #[must_use]
    pub fn line(&self, id: u64) -> String {
        let Self { address, local, name, library, library_version, descriptor, activity, .. } =
            self;
        let age = activity.age();
        let version = if self.resp3 { 3 } else { 2 };
        let texts = [address, local, name, library, library_version];
        let texts: usize = texts.iter().map(|text| text.capacity()).sum();
        let fields = activity.fields(self.kind, self.own_bytes + texts);
        format!(
            "id={id} addr={address} laddr={local} fd={descriptor} name={name} age={age} {fields} \
             user=default redir=-1 resp={version} lib-name={library} lib-ver={library_version}"
        )
    }
}

impl ClientTable {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, ClientEntry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub fn add(&self, id: u64, client: ClientEntry) {
        self.lock().insert(id, client);
    }

    /// Removes a connection.
    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// Calls `change` with a connection, if it exists.
    pub fn change<R>(&self, id: u64, change: impl FnOnce(&mut ClientEntry) -> R) -> Option<R> {
        self.lock().get_mut(&id).map(change)
    }

    /// The number of connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// The lines of the connections for which `is_wanted` returns true.
    #[must_use]
    pub fn list(&self, is_wanted: impl Fn(u64) -> bool) -> String {
        let clients = self.lock();
        let wanted = clients.iter().filter(|(id, _)| is_wanted(**id));
        wanted.map(|(id, client)| client.line(*id) + "\n").collect()
    }

    /// Marks the connections for which `is_doomed` returns true, and returns their ids. Their
    /// threads close them when they next check.
    pub fn kill(&self, is_doomed: impl Fn(u64, &ClientEntry) -> bool) -> Vec<u64> {
        let mut clients = self.lock();
        let mut killed = Vec::new();
        for (id, client) in clients.iter_mut() {
            if !client.is_killed && is_doomed(*id, client) {
                client.is_killed = true;
                killed.push(*id);
            }
        }
        if !killed.is_empty() {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        killed
    }

    /// Marks connections to be closed, largest first, until the others hold at most `limit` of the
    /// `held` bytes. Returns the number of connections marked.
    pub fn evict(&self, held: usize, limit: usize) -> u64 {
        let mut clients = self.lock();
        let of = |client: &ClientEntry| client.activity.held();
        // Connections that are already marked will free their memory soon.
        let marked: usize = clients.values().filter(|client| client.is_killed).map(of).sum();
        let mut rest = held.saturating_sub(marked);
        let mut largest: Vec<_> =
            clients.values_mut().filter(|client| !client.is_killed && of(client) > 0).collect();
        largest.sort_unstable_by_key(|client| std::cmp::Reverse(of(client)));
        let mut count = 0;
        for client in largest {
            if rest <= limit {
                break;
            }
            client.is_killed = true;
            rest = rest.saturating_sub(of(client));
            count += 1;
        }
        if count > 0 {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        count
    }

    /// The number of times that connections were marked. A thread checks its connections when it
    /// changes.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Whether a connection is marked to be closed.
    #[must_use]
    pub fn is_killed(&self, id: u64) -> bool {
        self.lock().get(&id).is_some_and(|client| client.is_killed)
    }
}
