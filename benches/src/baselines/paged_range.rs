//! Virtual memory whose missing pages are brought by its user: real page faults, reported through
//! userfaultfd as a signal (`UFFD_FEATURE_SIGBUS`) to the thread that made the access. That thread
//! brings the page itself, as in a kernel that handles the fault.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{Ordering, compiler_fence};

use anyhow::Context;
use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Brings the pages of a range.
pub(super) trait Pager {
    /// Inserts a page that an access needs.
    fn bring(&mut self, range: &PagedRange, page: usize);
}

/// A range of virtual memory, used by one thread at a time.
pub(super) struct PagedRange {
    base: NonNull<c_void>,
    len: NonZeroUsize,
    faults: OwnedFd,
}

// SAFETY: the mapping belongs to this value, and no thread depends on having made it.
unsafe impl Send for PagedRange {}

/// The access under way of a thread: its range, its pager, and the pager's function.
#[derive(Clone, Copy)]
struct Access {
    range: *const PagedRange,
    pager: *mut c_void,
    bring: unsafe fn(*mut c_void, *const PagedRange, usize),
}

thread_local! {
    static ACCESS: Cell<Option<Access>> = const { Cell::new(None) };
}

/// # Safety
/// `pager` is a `P` and `range` a range, and nothing else uses the pager meanwhile.
unsafe fn bring<P: Pager>(pager: *mut c_void, range: *const PagedRange, page: usize) {
    // SAFETY: as the caller promises.
    let pager = unsafe { &mut *pager.cast::<P>() };
    // SAFETY: as the caller promises.
    pager.bring(unsafe { &*range }, page);
}

extern "C" fn on_bus_error(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes the signal's information.
    let info = unsafe { &*info };
    // SAFETY: this signal's information has an address.
    let address = unsafe { info.si_addr() }.addr();
    if let Some(access) = ACCESS.get() {
        // SAFETY: `copy` keeps the range borrowed while the access is there.
        let place = unsafe { (*access.range).place_of(address) };
        if let Some(place) = place {
            // SAFETY: `copy` keeps the pager borrowed and does not use it. It was interrupted in a
            // copy of bytes, so whatever the pager calls is not interrupted within itself.
            return unsafe { (access.bring)(access.pager, access.range, place / PAGE) };
        }
    }
    // Not a fault of a range: without a handler, the repeated access ends the process.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    let _ = unsafe { sigaction(Signal::SIGBUS, &default) };
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let handler = SigHandler::SigAction(on_bus_error);
        let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
        // SAFETY: the handler is made for interruptions of `copy` and touches nothing otherwise.
        let installed = unsafe { sigaction(Signal::SIGBUS, &action) };
        installed.expect("the signal exists");
    });
}

impl PagedRange {
    /// Maps `pages` pages, all of which are missing.
    pub(super) fn new(pages: usize) -> anyhow::Result<Self> {
        install_handler();
        let len = NonZeroUsize::new(pages * PAGE).context("no pages")?;
        let faults = uffd::open().context(uffd::UNAVAILABLE)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: the kernel chooses the place.
        let base = unsafe { mmap_anonymous(None, len, protection, flags) }?;
        let range = Self { base, len, faults };
        // SAFETY: the range was just mapped and holds nothing.
        unsafe { madvise(base, len.get(), MmapAdvise::MADV_NOHUGEPAGE) }?;
        uffd::register(&range.faults, base, len)?;
        Ok(range)
    }

    /// Reads bytes; `pager` brings the pages that are missing.
    pub(super) fn read(&self, offset: usize, into: &mut [u8], pager: &mut impl Pager) {
        let from = self.within(offset, into.len());
        self.copy(from, into.as_mut_ptr(), into.len(), pager);
    }

    /// Writes bytes; `pager` brings the pages that are missing.
    pub(super) fn write(&self, offset: usize, from: &[u8], pager: &mut impl Pager) {
        let to = self.within(offset, from.len());
        self.copy(from.as_ptr(), to, from.len(), pager);
    }

    /// Inserts a missing page.
    pub(super) fn insert(&self, page: usize, bytes: &[u8; PAGE]) -> io::Result<()> {
        uffd::copy(&self.faults, self.within(page * PAGE, PAGE), bytes)
    }

    /// Removes a page that is there, and returns its bytes in `bytes`.
    pub(super) fn remove(&self, page: usize, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        let from = self.within(page * PAGE, PAGE);
        let start = NonNull::new(from.cast()).expect("within a mapping");
        // SAFETY: a page of the mapping, and bytes of the caller. Only this thread uses the range.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), PAGE) };
        // SAFETY: nothing was lent from the page.
        unsafe { madvise(start, PAGE, MmapAdvise::MADV_DONTNEED) }?;
        Ok(())
    }

    fn place_of(&self, address: usize) -> Option<usize> {
        address.checked_sub(self.base.addr().get()).filter(|place| *place < self.len.get())
    }

    /// The address of `len` bytes from `offset` on.
    fn within(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).filter(|end| *end <= self.len.get());
        assert!(end.is_some(), "{len} bytes at {offset} are outside of the range");
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset) }
    }

    /// Copies between the range and a slice, one of which each pointer belongs to.
    #[inline(never)]
    fn copy<P: Pager>(&self, from: *const u8, to: *mut u8, len: usize, pager: &mut P) {
        let pager: *mut P = pager;
        ACCESS.set(Some(Access { range: self, pager: pager.cast(), bring: bring::<P> }));
        // The handler of this thread must find the access.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: one side is a slice, the other was checked to be within the mapping; they do not
        // overlap, since the mapping is never lent as a slice.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        compiler_fence(Ordering::SeqCst);
        ACCESS.set(None);
    }
}

impl Drop for PagedRange {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing was lent from it.
        let _ = unsafe { munmap(self.base, self.len.get()) };
    }
}

/// The part of userfaultfd's interface that is needed (ioctl_userfaultfd(2), linux/userfaultfd.h).
mod uffd {
    use super::{AsRawFd, FromRawFd, NonNull, NonZeroUsize, OwnedFd, PAGE, c_void, io, libc};

    pub(super) const UNAVAILABLE: &str = "no userfaultfd: it needs root or CAP_SYS_PTRACE, or \
         `sysctl vm.unprivileged_userfaultfd=1`, and no seccomp filter that refuses it";
    const API: u64 = 0xaa;
    const FEATURE_SIGBUS: u64 = 1 << 7;
    const MODE_MISSING: u64 = 1;
    /// `UFFD_USER_MODE_ONLY`: faults within system calls are not handled.
    const USER_MODE_ONLY: i32 = 1;

    #[repr(C)]
    struct ApiOf {
        api: u64,
        features: u64,
        ioctls: u64,
    }

    #[repr(C)]
    struct Register {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }

    #[repr(C)]
    struct Copy {
        to: u64,
        from: u64,
        len: u64,
        mode: u64,
        copied: i64,
    }

    nix::ioctl_readwrite!(ioctl_api, API, 0x3f, ApiOf);
    nix::ioctl_readwrite!(ioctl_register, API, 0x00, Register);
    nix::ioctl_readwrite!(ioctl_copy, API, 0x03, Copy);

    /// Opens a userfaultfd that reports faults as a signal.
    pub(super) fn open() -> io::Result<OwnedFd> {
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call has opened the file for this process.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = ApiOf { api: API, features: FEATURE_SIGBUS, ioctls: 0 };
        // SAFETY: the kernel writes into `api` only.
        unsafe { ioctl_api(fd.as_raw_fd(), &raw mut api) }?;
        Ok(fd)
    }

    /// Makes accesses to missing pages of a range faults of this file.
    pub(super) fn register(
        fd: &OwnedFd,
        start: NonNull<c_void>,
        len: NonZeroUsize,
    ) -> io::Result<()> {
        let (start, len) = (start.addr().get() as u64, len.get() as u64);
        let mut register = Register { start, len, mode: MODE_MISSING, ioctls: 0 };
        // SAFETY: the range is mapped, and its owner passes it.
        unsafe { ioctl_register(fd.as_raw_fd(), &raw mut register) }?;
        Ok(())
    }

    /// Inserts a page.
    pub(super) fn copy(fd: &OwnedFd, to: *mut u8, bytes: &[u8; PAGE]) -> io::Result<()> {
        let (to, from) = (to.addr() as u64, bytes.as_ptr().addr() as u64);
        let mut copy = Copy { to, from, len: PAGE as u64, mode: 0, copied: 0 };
        // SAFETY: a missing page of a registered range, and bytes of a page.
        unsafe { ioctl_copy(fd.as_raw_fd(), &raw mut copy) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills each page with its number, and counts.
    struct Counter(Vec<usize>);

    impl Pager for Counter {
        fn bring(&mut self, range: &PagedRange, page: usize) {
            self.0.push(page);
            range.insert(page, &[u8::try_from(page).unwrap(); PAGE]).unwrap();
        }
    }

    #[test]
    fn a_missing_page_is_brought_once_and_again_after_it_was_removed() {
        let range = match PagedRange::new(8) {
            Ok(range) => range,
            Err(error) => {
                rackpool_testing::skipped(&format!("{error:#}"));
                return;
            }
        };
        let (mut pager, mut bytes) = (Counter(Vec::new()), [0; 64]);
        range.read(3 * PAGE + 100, &mut bytes, &mut pager);
        assert_eq!(bytes, [3; 64]);
        range.write(3 * PAGE, &[9], &mut pager);
        range.read(5 * PAGE - 32, &mut bytes, &mut pager);
        assert_eq!((bytes[0], bytes[63]), (4, 5), "over the border of two pages");
        assert_eq!(pager.0, [3, 4, 5]);
        let mut page = [0; PAGE];
        range.remove(3, &mut page).unwrap();
        assert_eq!((page[0], page[1]), (9, 3));
        range.read(3 * PAGE, &mut bytes[..1], &mut pager);
        assert_eq!((bytes[0], pager.0.len()), (3, 4));
    }
}
