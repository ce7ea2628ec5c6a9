//! The other daemons of the client's rack, its *siblings*: connections to them, and a thread's
//! states at them. See docs/design/rack-daemons.md.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, LockClaim, LockMode, PageId, RackId};
use rackpool_shm::access::AccessIntent;
use rackpool_shm::directory::RackDirectory;

use crate::connection::{Connection, DaemonLink, lock};
use crate::control::ControlStream;
use crate::deadline::Deadline;
use crate::error::LockError;
use crate::slots::ThreadSlots;
use crate::thread::{Target, Thread};
use crate::transfer::Bytes;
use crate::translation::{Place, Translation};
use crate::{AccessError, ClientOptions, DaemonError, OpenError, keeper};

/// Time between the end of an attempt to connect to a sibling and the next one.
const RETRY: Duration = Duration::from_secs(1);

/// How long a sibling may take for each step of a new connection: to accept it, to read the
/// request, to answer. A stopped one does not answer; the page is then accessed through the own
/// daemon.
const WELCOME: Duration = Duration::from_millis(300);

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
    state: LinkState,
}

#[derive(Debug)]
enum LinkState {
    /// A thread connects. The others use their own daemon.
    Connecting,
    Connected(Arc<Connection>),
    /// No attempt to connect is made before `until`.
    Failed {
        until: Instant,
    },
}

impl Siblings {
    /// The siblings of the daemon `own`, which listens on the socket of `options`.
    pub(crate) fn of(options: &ClientOptions, own: RackId) -> Self {
        let Some(directory) = directory(options) else { return Self::default() };
        let numbers = directory.siblings(own);
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
        // An operation with a limit of its own does not wait for a new connection.
        let has_time = Deadline::after(WELCOME).left() == WELCOME;
        {
            let mut links = lock(&self.siblings.links);
            match links.iter_mut().find(|link| link.rack == rack) {
                Some(Link { state: LinkState::Connecting, .. }) => return None,
                Some(Link { state: LinkState::Connected(known), .. }) if !known.is_over() => {
                    return Some(Arc::clone(known));
                }
                Some(Link { state: LinkState::Failed { until }, .. })
                    if Instant::now() < *until =>
                {
                    return None;
                }
                _ if !has_time => return None,
                Some(link) => link.state = LinkState::Connecting,
                None => links.push(Link { rack, state: LinkState::Connecting }),
            }
        }
        let connected = self.connect_to_sibling(rack);
        let mut links = lock(&self.siblings.links);
        let link = links.iter_mut().find(|link| link.rack == rack);
        match (connected, link) {
            (Ok(connection), Some(link)) if self.link() != DaemonLink::Closed => {
                link.state = LinkState::Connected(Arc::clone(&connection));
                Some(connection)
            }
            // The pool was closed meanwhile.
            (Ok(connection), _) => {
                connection.close();
                None
            }
            (Err(error), link) => {
                tracing::debug!("{}: the sibling {rack}: {error}", self.rack);
                if let Some(link) = link {
                    link.state = LinkState::Failed { until: Instant::now() + RETRY };
                }
                None
            }
        }
    }

    fn connect_to_sibling(&self, rack: RackId) -> Result<Arc<Self>, OpenError> {
        let socket = RackDirectory::new(&self.siblings.pool, rack).control_socket();
        let options = ClientOptions { socket, ..self.options.clone() };
        let mut control = ControlStream::connect_within(&options.socket, WELCOME)?;
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
            if let LinkState::Connected(connection) = link.state {
                connection.close();
            }
        }
    }
}

impl Thread {
    /// The state at a sibling with this index, or this one.
    #[inline]
    pub(crate) fn at(&mut self, sibling: Option<usize>) -> &mut Self {
        match sibling {
            Some(index) => &mut self.siblings[index],
            None => self,
        }
    }

    /// The state of a connection: this one, or one at a sibling. `None` if it has ended.
    pub(crate) fn of_connection(&mut self, id: NonZeroU64) -> Option<&mut Self> {
        if self.id == id {
            return Some(self);
        }
        self.siblings.iter_mut().find(|one| one.id == id && !one.connection.is_over())
    }

    /// This thread's state at a sibling; `None` if `home` is none, can't be reached, or has no slot
    /// for the thread.
    pub(crate) fn sibling(&mut self, home: RackId) -> Option<&mut Self> {
        self.sibling_index(home).and_then(|index| self.siblings.get_mut(index))
    }

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

    /// Executes a transfer within a page of a sibling's part with loads and stores. Returns false,
    /// with nothing done, if the page is not there any more, or can't be entered: then the own
    /// daemon does it. So all requests of a thread are known to its own daemon, which resolves what
    /// a killed thread has left.
    pub(crate) fn transfer_at_sibling(
        &mut self,
        home: RackId,
        addr: GlobalAddr,
        mut bytes: Bytes<'_>,
    ) -> Result<bool, AccessError> {
        // The lock of a guard is known to the own daemon, too.
        if self.claims.under.is_some() {
            return Ok(false);
        }
        let target = self.target(addr, bytes.len())?;
        if self.sibling(home).is_some_and(|other| other.hit(addr, &mut bytes)) {
            return Ok(true);
        }
        let done = match self.translate_at(home, &target, bytes.intent())? {
            Some((other, known)) => other.transfer_here(&target, known, bytes)?,
            None => false,
        };
        if !done {
            self.forget_at(home, target.page);
        }
        Ok(done)
    }

    /// Translates at a sibling. Returns `None` if it can't be asked: the own daemon then says
    /// whether that rack is away.
    pub(crate) fn translate_at(
        &mut self,
        home: RackId,
        target: &Target,
        intent: AccessIntent,
    ) -> Result<Option<(&mut Self, Translation)>, AccessError> {
        let Some(other) = self.sibling(home).filter(|other| other.can_find(target.page)) else {
            return Ok(None);
        };
        match other.translate(target, intent) {
            Ok(known) => Ok(Some((other, known))),
            // It ended before it answered; nothing was executed.
            Err(AccessError::Daemon(DaemonError::Unavailable)) => {
                Err(AccessError::RackUnavailable(home))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns true unless the daemon is away and would have to be asked where the page is.
    fn can_find(&self, page: PageId) -> bool {
        self.connection.link() == DaemonLink::Up || self.known(page).is_some()
    }

    /// Forgets what is remembered of a page here and at a sibling.
    pub(crate) fn forget_at(&mut self, home: RackId, page: PageId) {
        self.forget(page);
        if let Some(other) = self.sibling(home) {
            other.forget(page);
        }
    }

    /// The index of the state in whose part an object is; `None` for this one, and for objects in
    /// other racks.
    pub(crate) fn part_of(&mut self, addr: GlobalAddr) -> Option<usize> {
        if self.connection.siblings.is_empty() {
            return None;
        }
        // What is wrong with the address shows when it is used.
        let target = self.target(addr, 1).ok()?;
        let index = match self.failover_for(addr, 1, AccessIntent::Read) {
            Some(index) => index,
            None => match self.translate(&target, AccessIntent::Read).ok()?.place {
                Place::Sibling { home } => self.sibling_index(home)?,
                _ => return None,
            },
        };
        let other = &mut self.siblings[index];
        if !other.can_find(target.page) {
            return None;
        }
        let place = other.translate(&target, AccessIntent::Read).map(|known| known.place);
        if matches!(place, Ok(Place::Local { .. })) {
            return Some(index);
        }
        self.forget(target.page);
        None
    }

    /// The index of a state at a sibling that is served, while no daemon serves this one.
    #[inline]
    pub(crate) fn failover(&mut self) -> Option<usize> {
        if self.connection.siblings.is_empty() || self.connection.link() == DaemonLink::Up {
            return None;
        }
        self.find_served()
    }

    #[cold]
    fn find_served(&mut self) -> Option<usize> {
        let is_served = |one: &Self| one.connection.link() == DaemonLink::Up;
        if let Some(known) = self.siblings.iter().position(is_served) {
            return Some(known);
        }
        let connection = Arc::clone(&self.connection);
        connection.siblings.numbers.iter().find_map(|home| {
            let index = self.sibling_index(*home)?;
            is_served(&self.siblings[index]).then_some(index)
        })
    }

    /// The index of the state at a sibling that executes a new operation, for which this one needs
    /// its daemon, while that is away. An operation that the daemon has begun is never executed by
    /// another: it might take effect twice.
    pub(crate) fn failover_for(
        &mut self,
        addr: GlobalAddr,
        len: usize,
        intent: AccessIntent,
    ) -> Option<usize> {
        let index = self.failover()?;
        // The own daemon takes back what a killed thread has reserved, once it has executed the
        // writes of that thread.
        if intent == AccessIntent::Write && self.reservations.has_any() {
            return None;
        }
        let own = self.connection.rack;
        for end in [0, (len as u64).saturating_sub(1)] {
            let target = self.target(addr.add(end).ok()?, 1).ok()?;
            match self.known(target.page).map(|known| known.place) {
                Some(Place::Local { .. } | Place::Sibling { .. }) => return None,
                Some(Place::Copied { .. }) if intent == AccessIntent::Read => return None,
                _ => {}
            }
            // What is in the part of the daemon that is away has to wait for it. So has what the
            // sibling can't find: it may be there.
            match self.siblings[index].translate(&target, intent).ok()?.place {
                Place::Remote { home } | Place::Copied { home, .. } if home == own => return None,
                _ => {}
            }
        }
        Some(index)
    }

    /// Fails if the thread holds a lock of one of these lines, taken at whichever daemon.
    pub(crate) fn refuse_held(
        &self,
        addr: GlobalAddr,
        len: usize,
        mode: LockMode,
    ) -> Result<(), LockError> {
        if self.siblings.is_empty() {
            return Ok(());
        }
        let target = self.target(addr, len)?;
        let size = self.connection.page_size;
        let claim = LockClaim::covering(target.page, target.offset, target.len, size, mode);
        let Some(claim) = claim else { return Ok(()) };
        let siblings = self.siblings.iter().filter(|one| !one.connection.is_over());
        let mut states = std::iter::once(self).chain(siblings);
        match states.any(|state| state.holds(claim)) {
            true => Err(LockError::AlreadyHeld(addr)),
            false => Ok(()),
        }
    }
}
