//! Locks of files.

use std::time::Instant;

use fuser::{Errno, INodeNo, Notifier};
use nix::libc;
use rackpool_fs::{
    FsError, Ino, LockFamily, LockMode, LockOutcome, LockOwner, LockRange, LockRequest, OtherLock,
};

use super::requests::Request;
use super::{Answer, Shell};
use crate::device::Reply;
use crate::waiting::{Granted, Task, Waiter};

/// The flag of a `flock` lock.
const WHOLE: u32 = 1;

/// A lock mode in the kernel's encoding.
const fn raw_mode(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    }
}

impl Request<'_> {
    /// handle u64 | owner u64 | first u64 | last u64 | mode u32 | process u32 | flags u32 | zero
    /// u32
    fn lock_request(&mut self) -> Answer<LockRequest> {
        let fields = &mut self.fields;
        let (handle, id) = (fields.u64()?, fields.u64()?);
        let range = LockRange { first: fields.u64()?, last: fields.u64()? };
        let (mode, pid, flags) = (fields.i32()?, fields.u32()?, fields.u32()?);
        let mode = match mode {
            libc::F_RDLCK => Some(LockMode::Shared),
            libc::F_WRLCK => Some(LockMode::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(Errno::EINVAL),
        };
        if range.last < range.first {
            return Err(Errno::EINVAL);
        }
        let family = if flags & WHOLE != 0 { LockFamily::Whole } else { LockFamily::Record };
        Ok(LockRequest { owner: LockOwner { family, id }, range, mode, pid, handle })
    }

    /// Answers with a conflicting lock, or with `F_UNLCK` if there is none.
    pub(super) fn getlk(&mut self, reply: Reply) {
        let found = self.lock_request().and_then(|request| {
            let found = self.shell.volume.test_lock(self.header.ino, &request);
            Ok((request, found.map_err(|error| self.shell.failed_lock(&error))?))
        });
        let (range, mode, pid) = match found {
            Ok((_, Some(other))) => (other.range, raw_mode(other.mode), other.pid),
            Ok((request, None)) => (request.range, libc::F_UNLCK, 0),
            Err(error) => return reply.error(error),
        };
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&range.first.to_le_bytes());
        bytes.extend_from_slice(&range.last.to_le_bytes());
        bytes.extend_from_slice(&mode.to_le_bytes());
        bytes.extend_from_slice(&pid.to_le_bytes());
        reply.bytes(&bytes);
    }

    pub(super) fn setlk(&mut self, reply: Reply, waits: bool) {
        match self.lock_request() {
            Ok(request) => self.shell.lock(Waiter::new(self.header.ino, request, reply, waits)),
            Err(error) => reply.error(error),
        }
    }

    /// unique u64; needs no answer
    pub(super) fn interrupt(&mut self, reply: Reply) {
        if let Ok(unique) = self.fields.u64() {
            self.shell.waiting.interrupt(unique);
        }
        reply.none();
    }
}

impl Shell {
    /// Tries to set or release a lock, then answers or queues the request.
    fn lock(&self, waiter: Waiter) {
        let (ino, request) = (waiter.ino, waiter.request);
        let gives_up = request.mode.is_none();
        if gives_up {
            self.write_times_down(ino);
        }
        match self.volume.set_lock(ino, &request) {
            Ok(LockOutcome::Done(None)) => {
                if request.mode != Some(LockMode::Exclusive) {
                    self.waiting.nudge(ino);
                }
                waiter.reply.done();
            }
            Ok(LockOutcome::Done(Some(outdated))) => {
                self.waiting.drop_pages(Granted { ino, request, outdated, reply: waiter.reply });
            }
            Ok(LockOutcome::InTheWay(others)) => self.blocked(waiter, &others),
            // Transactions of other mounts have won, again and again.
            Err(FsError::Busy) => self.blocked(waiter, &[]),
            Err(error) => waiter.reply.error(self.failed_lock(&error)),
        }
    }

    fn blocked(&self, waiter: Waiter, others: &[OtherLock]) {
        if waiter.request.owner.family == LockFamily::Whole && waiter.is_new() {
            // It has released what it had.
            self.waiting.nudge(waiter.ino);
        }
        let may_go =
            |until: Instant| Instant::now() < until && others.iter().any(|other| other.is_closing);
        if waiter.until.is_none_or(may_go) {
            self.waiting.wait(waiter, others);
        } else {
            waiter.reply.error(Errno::EAGAIN);
        }
    }

    /// Retries waiting requests, and makes the kernel drop its pages of files whose locks were
    /// granted, until the mount has ended. A serving thread must not do the latter: the kernel
    /// waits for pages that it is reading or writing.
    pub(crate) fn keep_locks(&self, notifier: &Notifier) {
        loop {
            match self.waiting.next() {
                Task::Drop(granted) => self.drop_pages(granted, notifier),
                Task::Try(waiter) => self.lock(waiter),
                Task::End => return,
            }
        }
    }

    fn drop_pages(&self, granted: Granted, notifier: &Notifier) {
        let Granted { ino, request, outdated, reply } = granted;
        match notifier.inval_inode(INodeNo(ino.0), 0, 0) {
            Ok(()) => {
                self.volume.note_dropped(ino, outdated);
                reply.done();
            }
            Err(error) => {
                tracing::error!(
                    "the kernel did not invalidate its cache of a locked file: {error}"
                );
                // An owner that may read stale pages must not have the lock.
                let _ = self.volume.set_lock(ino, &LockRequest { mode: None, ..request });
                self.waiting.nudge(ino);
                reply.error(Errno::EIO);
            }
        }
    }

    /// Ends the lock thread.
    pub(crate) fn end_locks(&self) {
        self.waiting.end();
    }

    /// Stores the times of writes, so that the next owner of the lock sees that the file was
    /// changed.
    fn write_times_down(&self, ino: Ino) {
        if let Err(error) = self.volume.flush(ino) {
            // The lock is released nevertheless; the times are stored later.
            self.failures.note("storing the times of a locked file", &error);
        }
    }

    /// Releases the locks of a process that closes a descriptor of the file.
    pub(super) fn drop_locks(&self, ino: Ino, handle: u64, id: u64) -> Answer<()> {
        self.volume.note_closed(ino, handle);
        let owner = LockOwner { family: LockFamily::Record, id };
        let dropped = self.volume.drop_locks(ino, owner);
        self.waiting.nudge(ino);
        dropped.map_err(|error| self.failed_lock(&error))
    }

    /// Releases the locks of an open file description that is closed.
    pub(super) fn drop_locks_through(&self, ino: Ino, handle: u64) -> Answer<()> {
        let dropped = self.volume.drop_locks_through(ino, handle);
        self.waiting.nudge(ino);
        dropped.map_err(|error| self.failed_lock(&error))
    }

    fn failed_lock(&self, error: &FsError) -> Errno {
        match error {
            FsError::NoSpace => Errno::ENOLCK,
            error => self.failed_inode("a lock", error),
        }
    }
}
