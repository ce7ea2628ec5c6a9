//! Eventfds: descriptors by which one thread or process wakes another from `poll`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;

/// Creates an eventfd that is not readable. Neither end blocks.
pub fn new() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes an eventfd readable.
pub fn signal(eventfd: impl AsFd) {
    // A full counter is the only possible error; the eventfd is then readable.
    let _ = rustix::io::write(eventfd, &1_u64.to_le_bytes());
}

/// Empties an eventfd.
pub fn drain(eventfd: impl AsFd) {
    // Reading an empty eventfd fails, which is harmless.
    let _ = rustix::io::read(eventfd, &mut [0; 8]);
}
