//! What all threads of the service share; nothing of it is needed for data.

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
use crate::server::Listeners;
use crate::store::Keyspace;
use crate::watches::Watches;

/// What all threads share.
#[derive(Debug)]
pub struct Shared {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The name of the table.
    pub table: String,
    /// The address that was bound.
    pub listen: Option<SocketAddr>,
    /// The Unix socket.
    pub unix: Option<PathBuf>,
    /// Where clients come in, until the service ends.
    pub listeners: Mutex<Option<Listeners>>,
    /// What clients must say first.
    pub password: Option<Password>,
    /// Without a password, too, every user of the host is served.
    pub serves_any_user: bool,
    /// How many connections there may be.
    pub max_clients: usize,
    /// What they hold together.
    pub client_memory: ClientMemory,
    /// Wrong passwords of late.
    pub auth_throttle: AuthThrottle,
    /// No value can be longer, in bytes.
    pub longest_entry: usize,
    /// When the service was started.
    pub started: Instant,
    /// Random; a new one with each start.
    pub run_id: String,
    /// The connections.
    pub clients: Clients,
    /// How many threads serve connections.
    pub threads: usize,
    /// Figures of each thread: first of those, then of those that do long commands, then of the
    /// door.
    pub stats: Box<[Stats]>,
    /// What they were when they were last reset.
    pub reset: Mutex<Totals>,
    /// The keys that connections watch.
    pub watches: Arc<Watches>,
    /// Why the service has to end, once it has to.
    pub fatal: Mutex<Option<String>>,
    /// Whether it ends.
    pub ends: AtomicBool,
    /// What `INFO` has counted last, when that was and how long it took.
    pub keyspace: Mutex<Option<(Keyspace, Instant, Duration)>>,
    /// A command found the pool full: maps that no key names are to go.
    pub wants_memory: AtomicBool,
}

/// A password; comparing takes the same time wherever the first difference is.
#[derive(Clone)]
pub struct Password(Vec<u8>);

impl Password {
    /// The password.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// What it is, for those who have said it.
    #[must_use]
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Whether this is it.
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

/// A metric that one thread raises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Raises it.
    #[inline]
    pub fn add(&self, by: u64) {
        // Only its thread writes.
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    /// What it is.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread's metrics, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Stats {
    /// Commands done.
    pub commands: Counter,
    /// Commands that failed.
    pub errors: Counter,
    /// Connections that came.
    pub connections: Counter,
    /// Connections that were refused.
    pub rejected: Counter,
    /// Connections that were ended, as all together held too much.
    pub evicted: Counter,
    /// Wrong passwords.
    pub auth_failures: Counter,
    /// Keys whose time was over and that were deleted.
    pub expired: Counter,
}

/// The metrics of all threads together.
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
}

impl Shared {
    /// How many threads serve connections.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Whether only processes of this user and of root are served: nothing else tells clients
    /// apart.
    #[must_use]
    pub const fn is_for_own_user(&self) -> bool {
        self.password.is_none() && !self.serves_any_user
    }

    /// Lets nobody in any more. Before the first connection ends: its client finds the service
    /// gone.
    pub fn close_door(&self) {
        drop(self.listeners.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// A thread's metrics.
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
        }
    }

    /// Lets the metrics begin at 0 again.
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
        })
    }

    /// Lets the service end, with this to say.
    pub fn end(&self, reason: &str) {
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.get_or_insert_with(|| reason.to_owned());
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether the service ends.
    #[must_use]
    pub fn has_to_end(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// What is told of a connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it comes from.
    pub address: String,
    /// The address of this service that it came to.
    pub local: String,
    /// Whether it speaks version 3 of the protocol.
    pub resp3: bool,
    /// What it calls itself.
    pub name: String,
    /// The library that it uses.
    pub library: String,
    /// The release of that.
    pub library_version: String,
    descriptor: RawFd,
    /// The flag of its kind.
    kind: &'static str,
    /// What it takes beside its buffers, in bytes.
    own_bytes: usize,
    activity: Arc<Activity>,
    /// Whether it is to end.
    is_killed: bool,
}

/// The connections by their numbers.
#[derive(Debug, Default)]
pub struct Clients {
    all: Mutex<BTreeMap<u64, Client>>,
    kills: AtomicU64,
}

impl Client {
    /// A connection that has just come, with the number of its socket in this process, the flag of
    /// its kind, and how many bytes it takes beside its buffers.
    #[must_use]
    pub fn new(
        [address, local]: [String; 2],
        (descriptor, kind): (RawFd, &'static str),
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

    /// Its line in `CLIENT LIST`: the fields of Redis 7.0 in their order, then those of the
    /// library, which later releases have.
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

impl Clients {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Client>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one in.
    pub fn add(&self, id: u64, client: Client) {
        self.lock().insert(id, client);
    }

    /// Takes one out.
    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// Does something with one.
    pub fn change<R>(&self, id: u64, change: impl FnOnce(&mut Client) -> R) -> Option<R> {
        self.lock().get_mut(&id).map(change)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// A line for each that is wanted.
    #[must_use]
    pub fn list(&self, is_wanted: impl Fn(u64) -> bool) -> String {
        let clients = self.lock();
        let wanted = clients.iter().filter(|(id, _)| is_wanted(**id));
        wanted.map(|(id, client)| client.line(*id) + "\n").collect()
    }

    /// Marks those that are to end, and gives their numbers. The threads that serve them end them
    /// when they next look.
    pub fn kill(&self, is_doomed: impl Fn(u64, &Client) -> bool) -> Vec<u64> {
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

    /// Marks connections that are to end, those that hold most first, until the others hold no more
    /// than `limit` of the `held` bytes. Gives how many it has marked.
    pub fn evict(&self, held: usize, limit: usize) -> u64 {
        let mut clients = self.lock();
        let of = |client: &Client| client.activity.held();
        // What is marked already gives its bytes back soon.
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

    /// How often some were marked so far.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Whether one is to end.
    #[must_use]
    pub fn is_killed(&self, id: u64) -> bool {
        self.lock().get(&id).is_some_and(|client| client.is_killed)
    }
}
