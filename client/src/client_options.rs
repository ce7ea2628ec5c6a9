use std::path::{Path, PathBuf};
use std::time::Duration;

use rackpool_model::RackId;
use rackpool_shm::directory::RackDirectory;

/// Options for [`Pool::open`](crate::Pool::open).
///
/// ```
/// use std::time::Duration;
/// use rackpool_client::{ClientOptions, RackId};
/// let options = ClientOptions::new("/dev/shm/rackpool", RackId(1))
///     .threads(128)
///     .request_timeout(Duration::from_secs(5))
///     .reconnect_timeout(Duration::from_secs(60));
/// // The same daemon, by its socket.
/// let by_socket = ClientOptions::with_socket("/dev/shm/rackpool/rack-1/daemon.sock");
/// # let _ = (options, by_socket);
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub(crate) socket: PathBuf,
    pub(crate) threads: u16,
    pub(crate) request_timeout: Duration,
    pub(crate) reconnect_timeout: Duration,
    pub(crate) checked: bool,
    pub(crate) exact_daemon: bool,
}

impl ClientOptions {
    /// Options to connect through the daemon of `rack`, whose files are in the pool's folder
    /// `pool`.
    pub fn new(pool: impl AsRef<Path>, rack: RackId) -> Self {
        Self::with_socket(RackDirectory::new(pool.as_ref(), rack).control_socket())
    }

    /// Options to connect through the daemon that listens on this Unix socket.
    pub fn with_socket(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            threads: 64,
            request_timeout: Duration::from_secs(30),
            reconnect_timeout: Duration::from_secs(10),
            checked: false,
            exact_daemon: false,
        }
    }

    /// Number of threads that have a thread slot of their own: 1 to 512, by default 64. A slot
    /// takes 18 KiB of shared memory from its first use on; all slots together share a data ring of
    /// up to 4 MiB.
    ///
    /// A thread keeps its slot from its first operation to its end. Each further thread borrows one
    /// of 4 additional slots for each operation (fewer than 4 if `threads` is 509 or more). A
    /// borrowed slot costs round trips to the daemon, so threads with many operations should have a
    /// slot of their own.
    #[must_use]
    pub const fn threads(mut self, threads: u16) -> Self {
        self.threads = threads;
        self
    }

    /// How long an operation waits for its answer before it fails. Default: 30 s.
    #[must_use]
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long operations that need the daemon wait for a dead daemon to be restarted before they
    /// fail. Default: 10 s. Memory of the own rack that the client has already accessed stays
    /// usable meanwhile.
    #[must_use]
    pub const fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = timeout;
        self
    }

    /// Whether requests go through the named daemon also in a rack with several. Default: false,
    /// and the pools of such a rack are spread over its daemons; a daemon that is away when a pool
    /// is opened is passed over. In both cases a pool loads and stores in the memory of all.
    ///
    /// ```
    /// use rackpool_client::{ClientOptions, RackId};
    /// let options = ClientOptions::new("/dev/shm/rackpool", RackId(1)).exact_daemon(true);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub const fn exact_daemon(mut self, exact_daemon: bool) -> Self {
        self.exact_daemon = exact_daemon;
        self
    }

    /// Whether the client validates each address before an access, to find wrong uses of addresses.
    /// Default: false. In a checked client
    ///
    /// - an access past the end of its object fails with
    ///   [`BeyondObject`](crate::AccessError::BeyondObject); in an unchecked client only an access
    ///   past the end of the page does;
    /// - an access to an object of the own rack that any client has freed fails with
    ///   [`NotAllocated`](crate::AccessError::NotAllocated) at once; in an unchecked client only
    ///   when the page is free;
    /// - [`Pool::free`](crate::Pool::free) fills objects of the own rack with 0xdb, so that other
    ///   users that still read them detect it.
    ///
    /// A use after free is not detected once the object has been allocated again, because an
    /// address has no room for a generation. Each access of a checked client takes the slow path.
    #[must_use]
    pub const fn checked(mut self, checked: bool) -> Self {
        self.checked = checked;
        self
    }
}
