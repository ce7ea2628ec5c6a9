//! What the daemon is asked that is no access: figures, and named addresses, which it asks the
//! metadata server for.

use std::sync::{MutexGuard, TryLockError};

use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest, RackStatus};

use crate::connection::DaemonLink;
use crate::control::ControlStream;
use crate::deadline::Pauses;
use crate::thread::Thread;
use crate::{DaemonError, GlobalAddr, Pool, RootError};

impl Pool {
    /// The address stored under `name` (1 to 255 bytes), which the whole pool shares.
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
    /// [`RootError`]: the name is empty or too long, the metadata server refuses, or it or the daemon
    /// does not answer.
    pub fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError> {
        self.root_request(&ControlRequest::GetRoot { name: name.into() }).map(|(addr, _)| addr)
    }

    /// Stores `new` under `name` if `expected` is stored there, durably. Returns what stands there
    /// now and whether this call put it there.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// // Whoever comes first makes it; the others use what is there.
    /// let made = pool.alloc(4096)?;
    /// let (inventory, is_mine) = pool.set_root("inventory", None, Some(made))?;
    /// if !is_mine {
    ///     pool.free(made)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::root`]; then the change may or may not have been made, unless it was refused
    /// ([`RootError::OutOfBounds`], [`RootError::Refused`] with anything but a failed store).
    pub fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<(Option<GlobalAddr>, bool), RootError> {
        self.root_request(&ControlRequest::PutRoot { name: name.into(), expected, new })
    }

    fn root_request(
        &self,
        request: &ControlRequest,
    ) -> Result<(Option<GlobalAddr>, bool), RootError> {
        // Before the daemon is asked, which would take a longer request for a broken one.
        request.check()?;
        match self.ask(request)? {
            ControlReply::Root { addr, changed } => Ok((addr, changed)),
            ControlReply::Refused(ControlRefusal::Metadata(refusal)) => Err(refusal.into()),
            ControlReply::Refused(ControlRefusal::OutOfBounds(reason)) => Err(reason.into()),
            ControlReply::Refused(ControlRefusal::MetadataUnreachable) => {
                Err(DaemonError::MetadataUnreachable.into())
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }

    /// The figures of the own rack.
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

    /// Sends the daemon a request that it answers at once, the way that all requests to it go, and
    /// waits for the answer: how long that takes is what a miss costs at least.
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

    /// Whether a daemon serves this client now, as far as the client knows; asks nobody.
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
    /// [`DaemonError`]: there is no daemon, it does not know this client any more, or the pool is closed.
    pub fn check_served(&self) -> Result<(), DaemonError> {
        match self.connection.link() {
            DaemonLink::Down => Err(DaemonError::Unavailable),
            _ => self.connection.check_link(),
        }
    }

    /// The daemon's socket, which others may be using.
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
