//! The other daemons of the client's rack, its *siblings*: connections to them, and a thread's
//! states at them. See docs/design/rack-daemons.md.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, PageId, RackId};
use rackpool_shm::access::AccessIntent;
use rackpool_shm::directory::RackDirectory;

use crate::connection::{Connection, DaemonLink, lock};
use crate::control::ControlStream;
use crate::slots::ThreadSlots;
use crate::thread::{Target, Thread};
use crate::transfer::Bytes;
use crate::translation::{Place, Translation};
use crate::{AccessError, ClientOptions, OpenError, keeper};

/// Time between two attempts to connect to a sibling.
const RETRY: Duration = Duration::from_secs(1);

/// The siblings of a connection, and the connections to those whose pages were used.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    pool: PathBuf,
    numbers: Vec<RackId>,
    links: Mutex<Vec<Link>>,
}

#[derive(Debug)]
struct Link {
    rack: RackId,
    connection: Option<Arc<Connection>>,
    /// No attempt to connect is made before this time.
    retry_at: Instant,
}

impl Siblings {
    /// The siblings of the daemon `own`, which listens on the socket of `options`.
    pub(crate) fn of(options: &ClientOptions, own: RackId) -> Self {
        let Some(directory) = directory(options) else { return Self::default() };
        let mut numbers = directory.daemons();
        numbers.retain(|number| *number != own);
        Self { pool: directory.pool().to_path_buf(), numbers, links: Mutex::default() }
    }

    /// Returns true if the rack has one daemon.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(crate) fn has(&self, rack: RackId) -> bool {
        self.numbers.contains(&rack)
    }
}

fn directory(options: &ClientOptions) -> Option<RackDirectory> {
    options.socket.parent().map(RackDirectory::at)
}

/// The options for each daemon that can serve a new client, in the order in which to try them.
/// Programs begin with different ones by a hash of their process id, the pools of one program by
/// turns.
pub(crate) fn candidates(options: ClientOptions) -> Vec<ClientOptions> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);

    let daemons = directory(&options).map(|rack| rack.daemons()).unwrap_or_default();
    if options.exact_daemon || daemons.len() < 2 {
        return vec![options];
    }
    // Processes that start together often have ids with a pattern: the upper bits of the product
    // have none.
    let hash = u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let opened = OPENED.fetch_add(1, Ordering::Relaxed);
    let first = (hash as usize).wrapping_add(opened) % daemons.len();
    let order = daemons[first..].iter().chain(&daemons[..first]);
    order.map(|daemon| at_daemon(&options, *daemon)).collect()
}

fn at_daemon(options: &ClientOptions, daemon: RackId) -> ClientOptions {
    let pool = directory(options).map(|rack| rack.pool().to_path_buf()).unwrap_or_default();
    let socket = RackDirectory::new(&pool, daemon).control_socket();
    ClientOptions { socket, ..options.clone() }
}

impl Connection {
    /// The connection to a sibling; `None` if `rack` is none, or while it can't be reached.
    fn sibling(&self, rack: RackId) -> Option<Arc<Self>> {
        if !self.siblings.has(rack) {
            return None;
        }
        {
            let mut links = lock(&self.siblings.links);
            match links.iter_mut().find(|link| link.rack == rack) {
                Some(link) => {
                    let known = link.connection.as_ref();
                    if let Some(known) = known.filter(|known| !known.is_over()) {
                        return Some(Arc::clone(known));
                    }
                    let now = Instant::now();
                    if now < link.retry_at {
                        return None;
                    }
                    link.retry_at = now + RETRY;
                }
                None => {
                    let retry_at = Instant::now() + RETRY;
                    links.push(Link { rack, connection: None, retry_at });
                }
            }
        }
        // Without the lock: other threads ask their own daemon meanwhile.
        let connected = self.connect_to_sibling(rack);
        let connection = connected
            .inspect_err(|error| tracing::debug!("{}: the sibling {rack}: {error}", self.rack))
            .ok()?;
        let mut links = lock(&self.siblings.links);
        if self.link() == DaemonLink::Closed {
            connection.close();
            return None;
        }
        let link = links.iter_mut().find(|link| link.rack == rack)?;
        link.connection = Some(Arc::clone(&connection));
        Some(connection)
    }

    fn connect_to_sibling(&self, rack: RackId) -> Result<Arc<Self>, OpenError> {
        let socket = RackDirectory::new(&self.siblings.pool, rack).control_socket();
        let options = ClientOptions { socket, ..self.options.clone() };
        let mut control = ControlStream::connect(&options.socket)?;
        let welcome = control.hello(ThreadSlots::wanted(options.threads), None)?;
        let connection = Self::over(options, control, welcome)?;
        if connection.rack != rack || connection.page_size != self.page_size {
            connection.close();
            return Err(OpenError::Protocol(format!("a daemon of {}", connection.rack)));
        }
        let connection = Arc::new(connection);
        keeper::start(&connection)?;
        Ok(connection)
    }

    /// Returns true if the connection can't be used any more.
    fn is_over(&self) -> bool {
        matches!(self.link(), DaemonLink::Forgotten | DaemonLink::Closed)
    }

    /// Closes the connections to siblings.
    pub(crate) fn close_siblings(&self) {
        for link in lock(&self.siblings.links).drain(..) {
            if let Some(connection) = link.connection {
                connection.close();
            }
        }
    }
}

impl Thread {
    /// This thread's state at a sibling; `None` if `home` is none, can't be reached, or has no slot
    /// for the thread.
    #[inline]
    pub(crate) fn sibling(&mut self, home: RackId) -> Option<&mut Self> {
        self.sibling_index(home).and_then(|index| self.siblings.get_mut(index))
    }

    #[inline]
    fn sibling_index(&mut self, home: RackId) -> Option<usize> {
        if self.connection.siblings.is_empty() || self.is_borrowed {
            return None;
        }
        match self.siblings.iter().position(|one| one.connection.rack == home) {
            Some(index) if !self.siblings[index].connection.is_over() => Some(index),
            _ => self.begin_at_sibling(home),
        }
    }

    #[cold]
    fn begin_at_sibling(&mut self, home: RackId) -> Option<usize> {
        self.siblings.retain(|one| one.connection.rack != home);
        let connection = self.connection.sibling(home)?;
        let mut sibling = Self::new(&connection).ok()??;
        self.window.link(&mut sibling.window, connection.permit.clone(), connection.id);
        self.siblings.push(sibling);
        Some(self.siblings.len() - 1)
    }

    /// Where a page is whose home is not the own daemon.
    pub(crate) fn place_at(&mut self, home: RackId, otherwise: Place) -> Place {
        if self.sibling(home).is_some() { Place::Sibling { home } } else { otherwise }
    }

    /// The state at a sibling that is served, while no daemon serves this one. It begins what this
    /// one can't.
    #[inline]
    pub(crate) fn failover(&mut self) -> Option<&mut Self> {
        let is_served = self.connection.link() == DaemonLink::Up;
        // The lock of a guard is known to the own daemon.
        if self.connection.siblings.is_empty() || is_served || self.claims.under.is_some() {
            return None;
        }
        self.failover_to_any()
    }

    #[cold]
    fn failover_to_any(&mut self) -> Option<&mut Self> {
        let connection = Arc::clone(&self.connection);
        let is_served = |one: &mut Self| one.connection.link() == DaemonLink::Up;
        let mut numbers = connection.siblings.numbers.iter();
        let home = numbers.find(|home| self.sibling(**home).is_some_and(is_served))?;
        self.sibling(*home)
    }

    /// Translates through a sibling while no daemon serves this thread. The result is not
    /// remembered.
    pub(crate) fn translate_by_failover(
        &mut self,
        target: &Target,
        intent: AccessIntent,
    ) -> Result<Option<Translation>, AccessError> {
        let Some(other) = self.failover() else { return Ok(None) };
        let home = other.connection.rack;
        let Translation { usage, .. } = other.translate(target, intent)?;
        Ok(Some(Translation { place: Place::Sibling { home }, usage }))
    }

    /// Executes a transfer within a page that a sibling has, or brings.
    pub(crate) fn transfer_at_sibling(
        &mut self,
        home: RackId,
        page: PageId,
        addr: GlobalAddr,
        bytes: Bytes<'_>,
    ) -> Result<(), AccessError> {
        let Some(other) = self.sibling(home) else {
            self.forget(page);
            return self.transfer(addr, bytes);
        };
        let done = other.transfer(addr, bytes);
        if !other.has_here(page) {
            self.forget(page);
        }
        done
    }

    /// Returns true if the page is known to be in this part.
    pub(crate) fn has_here(&self, page: PageId) -> bool {
        matches!(self.known(page), Some(Translation { place: Place::Local { .. }, .. }))
    }

    /// The state in whose part an object is: a sibling's, or this one.
    pub(crate) fn at_part_of(&mut self, addr: GlobalAddr) -> &mut Self {
        if self.connection.siblings.is_empty() {
            return self;
        }
        let target = self.target(addr, 1);
        // What is wrong with the address shows when it is used.
        let known = target.and_then(|target| self.translate(&target, AccessIntent::Read));
        let index = match known {
            Ok(Translation { place: Place::Sibling { home }, .. }) => self.sibling_index(home),
            _ => None,
        };
        match index {
            Some(index) => &mut self.siblings[index],
            None => self,
        }
    }

    /// The state that took a lock: at the sibling `at`, or this one. `None` if it has ended, and
    /// the lock with it.
    pub(crate) fn holder_at(&mut self, at: Option<RackId>) -> Option<&mut Self> {
        match at {
            None => Some(self),
            Some(home) => self
                .siblings
                .iter_mut()
                .find(|one| one.connection.rack == home && !one.connection.is_over()),
        }
    }
}
