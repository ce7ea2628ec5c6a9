//! Sleeping without missing a request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rackpool_model::ClientId;
use rackpool_ring::client_file::{ClientFile, RingKind};
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::command::count;
use super::{Command, DataPlane};
use crate::data_plane::error::{PlaneError, Result};

/// Epoll tags of descriptors that are not a client's doorbell.
const WAKE: u64 = u64::MAX;
const FABRIC: u64 = u64::MAX - 1;
const TIMER: u64 = u64::MAX - 2;
/// A sleep ends this time before the next completion: what a thread takes to wake.
const WAKE_UP: Duration = Duration::from_micros(60);
/// Maximum sleep with a deadline, and without one.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What the data plane waits for in its sleep.
#[derive(Debug)]
pub(super) struct Sleeper {
    epoll: OwnedFd,
    wake: OwnedFd,
    wake_timer: WakeTimer,
}

/// The timer that ends a short sleep. A timeout of `epoll_wait` that is nearer than the kernel's
/// next tick would be programmed into the core's timer, and removed again, in each sleep: 4 us in a
/// virtual machine. This timer stays set when another event ends the sleep, and serves the next
/// sleeps.
#[derive(Debug)]
struct WakeTimer {
    timer: OwnedFd,
    /// The timer does not expire before this time.
    rings: Instant,
}

impl WakeTimer {
    fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(PlaneError::system("make the timer that ends a sleep"))?;
        Ok(Self { timer, rings: Instant::now() })
    }

    /// Makes the timer expire within `longest`.
    fn set(&mut self, now: Instant, longest: Duration) -> Result<()> {
        if self.rings <= now || self.rings > now + longest {
            let it_value = longest.max(Duration::from_nanos(1)).try_into()?;
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
                .map_err(PlaneError::system("set the timer that ends a sleep"))?;
            self.rings = now + longest;
        }
        Ok(())
    }
}

impl Sleeper {
    pub(super) fn new(wake: OwnedFd, fabric: BorrowedFd<'_>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(PlaneError::system("make an epoll"))?;
        let sleeper = Self { epoll, wake, wake_timer: WakeTimer::new()? };
        sleeper.watch(sleeper.wake.as_fd(), WAKE)?;
        sleeper.watch(sleeper.wake_timer.timer.as_fd(), TIMER)?;
        sleeper.watch(fabric, FABRIC)?;
        Ok(sleeper)
    }

    fn watch(&self, fd: BorrowedFd<'_>, tag: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(tag);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
            .map_err(PlaneError::system("watch a descriptor"))
    }

    /// Stops watching a doorbell. Closing it would not be enough, because its client has a
    /// descriptor too.
    pub(super) fn unwatch(&self, bell: &OwnedFd) -> Result<()> {
        epoll::delete(&self.epoll, bell).map_err(PlaneError::system("stop watching a doorbell"))
    }

    /// Watches a client's doorbell.
    pub(super) fn watch_client(&self, client: ClientId, bell: &OwnedFd) -> Result<()> {
        self.watch(bell.as_fd(), u64::from(client.0))
    }
}

fn drain(event: impl AsFd) {
    // Nothing to read means that the event was not signalled.
    let _ = rustix::io::read(event, &mut [0; 8]);
}

impl DataPlane {
    /// Sleeps until an event or shortly before the next completion, or for at most [`LONG`].
    pub(super) fn go_to_sleep(&mut self) -> Result<()> {
        let rack = std::sync::Arc::clone(&self.rack);
        let sleeping = rack.metadata.superblock()?.sleeping();
        // A request pushed before this is found below; a thread that pushes one after this sees the
        // flag.
        sleeping.set();
        let quiet = self.rings_are_empty() && self.fabric.arm();
        let mut ready = Vec::with_capacity(16);
        if quiet {
            count(&self.metrics.sleeps);
            let deadline = self.has_deadlines().then_some(SHORT);
            let completion = self.fabric.next_completion();
            let completion = completion.map(|until| until.saturating_sub(WAKE_UP));
            if let Some(longest) = deadline.into_iter().chain(completion).min() {
                self.sleeper.wake_timer.set(Instant::now(), longest)?;
            }
            match epoll::wait(
                &self.sleeper.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&LONG),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(PlaneError::system("sleep")(error)),
            }
        }
        sleeping.clear();
        self.fabric.disarm();
        for event in &ready {
            match event.data.u64() {
                WAKE => drain(&self.sleeper.wake),
                TIMER => drain(&self.sleeper.wake_timer.timer),
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
        served.all(|c| {
            [RingKind::Rack, RingKind::Remote].iter().all(|route| is_empty(&c.file, *route))
        })
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

    /// Sends a command. Returns false if the data plane has ended.
    pub(crate) fn tell(&self, command: Command) -> bool {
        if self.commands.send(command).is_err() {
            return false;
        }
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
        true
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::timerfd_gettime;

    use super::*;

    fn is_set(wake_timer: &WakeTimer) -> bool {
        timerfd_gettime(&wake_timer.timer).unwrap().it_value != Timespec::default()
    }

    /// Waits until the timer expires, at most [`LONG`].
    fn hear(wake_timer: &WakeTimer) {
        let mut rung = [PollFd::new(&wake_timer.timer, PollFlags::IN)];
        assert_eq!(poll(&mut rung, Some(&LONG)).unwrap(), 1, "it does not ring");
    }

    #[test]
    fn a_timer_is_set_once_for_sleeps_that_others_end_and_again_when_it_has_fired() {
        let mut wake_timer = WakeTimer::new().unwrap();
        assert!(!is_set(&wake_timer), "nothing is asked of it yet");
        let asleep = Instant::now();
        wake_timer.set(asleep, SHORT).unwrap();
        assert!(is_set(&wake_timer) || asleep.elapsed() > SHORT);
        let rings = wake_timer.rings;
        wake_timer.set(asleep + SHORT / 2, SHORT).unwrap();
        assert_eq!(wake_timer.rings, rings, "the next sleep does not put it off");
        hear(&wake_timer);
        assert!(Instant::now() >= rings && !is_set(&wake_timer));
        drain(&wake_timer.timer);
        wake_timer.set(Instant::now(), SHORT).unwrap();
        assert!(wake_timer.rings > rings);
        hear(&wake_timer);
        drain(&wake_timer.timer);
        // A completion that is nearer than the timer.
        let asleep = Instant::now();
        wake_timer.set(asleep, 10 * SHORT).unwrap();
        wake_timer.set(asleep, SHORT).unwrap();
        assert_eq!(wake_timer.rings, asleep + SHORT);
        hear(&wake_timer);
    }
}
