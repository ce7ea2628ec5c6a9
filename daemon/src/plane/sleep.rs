//! Sleeping without missing a request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rackpool_model::ClientId;
use rackpool_ring::client_file::{ClientFile, Route};
use rackpool_sync::Patience;
use rustix::event::{Timespec, epoll};

use super::command::count;
use super::{Command, DataPlane};

/// How long it looks without anything to do before it sleeps, at most: about what a sleep costs. Then there
/// are some turns in which others on the core get on.
const LONGEST: Duration = Duration::from_micros(10);
/// It always looks for so long: for what is just coming.
const LEAST: Duration = Duration::from_micros(4);
const YIELDS: u32 = 24;
/// Tags of descriptors that are no client's doorbell.
const WAKE: u64 = u64::MAX;
const FABRIC: u64 = u64::MAX - 1;
/// How long to sleep when something happens with time, and when nothing does.
const SHORT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const LONG: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long the data plane looks before it sleeps.
pub(super) const fn patience() -> Patience {
    Patience::new(LEAST, LONGEST, YIELDS)
}

/// What the data plane sleeps on.
#[derive(Debug)]
pub(super) struct Sleeper {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Sleeper {
    pub(super) fn new(wake: OwnedFd, fabric: BorrowedFd<'_>) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sleeper = Self { epoll, wake };
        sleeper.watch(sleeper.wake.as_fd(), WAKE)?;
        sleeper.watch(fabric, FABRIC)?;
        Ok(sleeper)
    }

    fn watch(&self, fd: BorrowedFd<'_>, tag: u64) -> anyhow::Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        Ok(())
    }

    /// No longer watches a doorbell. Closing it would not be enough: its client has it too.
    pub(super) fn unwatch(&self, bell: &OwnedFd) -> anyhow::Result<()> {
        Ok(epoll::delete(&self.epoll, bell)?)
    }

    /// Watches a client's doorbell.
    pub(super) fn watch_client(&self, client: ClientId, bell: &OwnedFd) -> anyhow::Result<()> {
        self.watch(bell.as_fd(), u64::from(client.0))
    }
}

fn drain(event: impl AsFd) {
    // Nothing to read means that nobody rang.
    let _ = rustix::io::read(event, &mut [0; 8]);
}

impl DataPlane {
    /// Sleeps until somebody rings, or for a while.
    pub(super) fn go_to_sleep(&mut self) -> anyhow::Result<()> {
        let rack = std::sync::Arc::clone(&self.rack);
        let sleeping = rack.metadata.superblock()?.sleeping();
        // A request pushed before is seen below, a request pushed after finds the flag set.
        sleeping.set();
        let quiet = self.rings_are_empty() && self.fabric.arm();
        let mut ready = Vec::with_capacity(16);
        if quiet {
            count(&self.figures.sleeps);
            let timeout = if self.has_deadlines() { SHORT } else { LONG };
            match epoll::wait(
                &self.sleeper.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&timeout),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        sleeping.clear();
        self.fabric.disarm();
        for event in &ready {
            match event.data.u64() {
                WAKE => drain(&self.sleeper.wake),
                FABRIC => {}
                client => {
                    let client = u32::try_from(client).ok().map(ClientId);
                    let known = client.and_then(|client| self.clients.all.get(client));
                    if let Some(bell) = known.and_then(|known| known.doorbell.as_ref()) {
                        drain(bell);
                    }
                }
            }
        }
        Ok(())
    }

    fn rings_are_empty(&self) -> bool {
        let mut served = self.clients.all.values().filter(|client| client.is_served());
        let is_empty = |file: &ClientFile, route| file.ring(route).is_empty();
        served.all(|c| [Route::Rack, Route::Remote].iter().all(|route| is_empty(&c.file, *route)))
    }
}

/// The control plane's handle to wake the data plane.
#[derive(Debug)]
pub(crate) struct Waker {
    commands: std::sync::mpsc::Sender<Command>,
    wake: OwnedFd,
}

impl Waker {
    pub(crate) const fn new(commands: std::sync::mpsc::Sender<Command>, wake: OwnedFd) -> Self {
        Self { commands, wake }
    }

    /// Tells the data plane something; whether it is still there.
    pub(crate) fn tell(&self, command: Command) -> bool {
        if self.commands.send(command).is_err() {
            return false;
        }
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
        true
    }
}
