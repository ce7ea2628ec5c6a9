//! Requests that are not accesses: metrics of the rack, roots, and the state of the link.

use std::sync::{MutexGuard, TryLockError};

use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest, RackStatus};

use crate::connection::DaemonLink;
use crate::control::ControlStream;
use crate::deadline::Pauses;
use crate::thread::Thread;
use crate::{DaemonError, GlobalAddr, Pool, RootError, RootUpdate};

impl Pool {
    /// Returns the address stored under the root `name` (1 to 255 bytes), which is shared by the
    /// whole pool.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// match pool.root("inventory")? {
    ///     Some(addr) => println!("the inventory is at {addr}"),
    ///     None => println!("nobody has made an inventory"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RootError`]: the name is empty or too long, the metadata server refuses, or the daemon or
    /// the metadata server does not answer.
    pub fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError> {
        self.root_request(&ControlRequest::GetRoot { name: name.into() }).map(|root| root.addr)
    }

    /// Durably replaces the address stored under `name` with `new` if it equals `expected`. Returns
    /// the address stored afterwards, and whether this call changed it.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// // Whoever comes first makes it; the others use what is there.
    /// let made = pool.alloc(4096)?;
    /// let inventory = pool.set_root("inventory", None, Some(made))?;
    /// if !inventory.changed {
    ///     pool.free(made)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::root`]. The change may or may not have been made, unless the request was refused
    /// ([`RootError::OutOfBounds`], or [`RootError::Refused`] with any reason but a failed store).
    pub fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<RootUpdate, RootError> {
        self.root_request(&ControlRequest::PutRoot { name: name.into(), expected, new })
    }

    fn root_request(&self, request: &ControlRequest) -> Result<RootUpdate, RootError> {
        // The daemon would treat a request beyond the bounds as a protocol error.
        request.check()?;
        match self.ask(request)? {
            ControlReply::Root { addr, changed } => Ok(RootUpdate { addr, changed }),
            ControlReply::Refused(ControlRefusal::Metadata(refusal)) => Err(refusal.into()),
            ControlReply::Refused(ControlRefusal::OutOfBounds(reason)) => Err(reason.into()),
            ControlReply::Refused(ControlRefusal::MetadataUnreachable) => {
                Err(DaemonError::MetadataUnreachable.into())
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }

    /// Returns the metrics of the own rack.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let status = pool.rack_status()?;
    /// println!("{} of {} frames are free", status.free_frames, status.frames);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DaemonError`]: the daemon does not answer, or the pool is closed.
    pub fn rack_status(&self) -> Result<RackStatus, DaemonError> {
        match self.ask(&ControlRequest::RackStatus)? {
            ControlReply::RackStatus(status) => Ok(*status),
            _ => Err(DaemonError::Protocol),
        }
    }

    /// Sends a request that the daemon answers immediately, over the same path as all other
    /// requests, and waits for the answer. The time that this takes is the lower bound of an access
    /// that needs the daemon.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let began = std::time::Instant::now();
    /// pool.ping()?;
    /// println!("the daemon answers in {:?}", began.elapsed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::rack_status`].
    pub fn ping(&self) -> Result<(), DaemonError> {
        self.with(Thread::ping)?
    }

    /// Returns `Ok` if, as far as the client knows, a daemon serves it now. Sends no request.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// if let Err(reason) = pool.check_served() {
    ///     println!("not served: {reason}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DaemonError`]: the daemon is away, it does not know this client, or the pool is closed.
    pub fn check_served(&self) -> Result<(), DaemonError> {
        match self.connection.link() {
            DaemonLink::Down => Err(DaemonError::Unavailable),
            _ => self.connection.check_link(),
        }
    }

    /// Locks the control stream. Waits for other threads that use it until the operation's
    /// deadline.
    fn control(&self) -> Result<MutexGuard<'_, Option<ControlStream>>, DaemonError> {
        let (deadline, mut pauses) = (self.connection.overdue(), Pauses::default());
        loop {
            match self.connection.control.try_lock() {
                Ok(control) => return Ok(control),
                Err(TryLockError::Poisoned(control)) => return Ok(control.into_inner()),
                Err(TryLockError::WouldBlock) if deadline.has_passed() => {
                    return Err(DaemonError::Unavailable);
                }
                Err(TryLockError::WouldBlock) => pauses.wait(),
            }
        }
    }

    fn ask(&self, request: &ControlRequest) -> Result<ControlReply, DaemonError> {
        self.connection.check_link()?;
        let mut control = self.control()?;
        let stream = control.as_mut().ok_or(DaemonError::Closed)?;
        stream.ask(request).map_err(|error| {
            if error.is_end_of_stream() {
                self.connection.set_link(DaemonLink::Down);
            }
            DaemonError::Unavailable
        })
    }
}
