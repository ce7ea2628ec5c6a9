use std::path::{Path, PathBuf};
use std::time::Duration;

use rackpool_model::RackId;
use rackpool_shm::directory::RackDirectory;

/// How a [`Pool`](crate::Pool) is opened.
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
}

impl ClientOptions {
    /// Through the daemon of `rack`, whose files are in the pool's folder `pool`.
    pub fn new(pool: impl AsRef<Path>, rack: RackId) -> Self {
        Self::with_socket(RackDirectory::new(pool.as_ref(), rack).control_socket())
    }

    /// Through the daemon that listens on this Unix socket.
    pub fn with_socket(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            threads: 64,
            request_timeout: Duration::from_secs(30),
            reconnect_timeout: Duration::from_secs(10),
            checked: false,
        }
    }

    /// How many threads have a slot of their own in the pool: 1 to 512, 64 unless set. Each takes
    /// 18 KiB of shared memory, only once it is used; all together share up to 4 MiB.
    ///
    /// A thread keeps its slot from its first operation to its end. More threads than that borrow
    /// one of 4 further slots for each operation (with 509 and more there are fewer), which costs
    /// round trips to the daemon: give threads that do much a slot of their own.
    #[must_use]
    pub const fn threads(mut self, threads: u16) -> Self {
        self.threads = threads;
        self
    }

    /// How long an operation waits for its answer before it fails; 30 s unless set.
    #[must_use]
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a daemon that died may take to come back before operations that need it fail;
    /// 10 s unless set. Memory of the own rack that was used before stays usable meanwhile.
    #[must_use]
    pub const fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = timeout;
        self
    }

    /// Whether each access is checked first, to find what a program does wrong with addresses; not
    /// unless set. Then
    ///
    /// - an access that goes past its object is [`BeyondObject`](crate::AccessError::BeyondObject),
    ///   and not only one that goes past its page;
    /// - an access to an object of the own rack that has been freed is
    ///   [`NotAllocated`](crate::AccessError::NotAllocated) at once, whoever freed it, and not only
    ///   when its page is free;
    /// - [`Pool::free`](crate::Pool::free) fills objects of the own rack with 0xdb, so that others
    ///   who still read them see it.
    ///
    /// An address whose object was freed and handed out again is one of the new object: addresses
    /// have no room for a generation. No access goes the short way, so each takes longer.
    #[must_use]
    pub const fn checked(mut self, checked: bool) -> Self {
        self.checked = checked;
        self
    }
}
