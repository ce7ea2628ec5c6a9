//! Copying between private memory and memory that other processes write, by size.

use std::cell::Cell;
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::atomic::compiler_fence;

use rackpool_sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::Shared;

/// From this length on (bytes) a copy uses stores that bypass the caches, because the copied data
/// would displace more valuable cache contents. Measured (`cargo x bench corun` prints the table by
/// length): shorter copies gain hardly anything, and a reader of the copy waits about twice as long
/// right after it. From 1 MiB on, the size of a core's second-level cache there, copies gained up
/// to a third where the memory was not busy, and neighbours lost less.
const STREAM: usize = 1 << 20;
/// Up to this length (bytes) a read into the same memory as the thread's last long read uses cached
/// stores. The caches hold that memory and would have to evict it: 2 MiB took half as long again,
/// and cost neighbours more (docs/benchmarking.md, `corun`).
const AGAIN: usize = 4 << 20;

thread_local! {
    /// Address of the destination of this thread's last long read.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// From this length on (bytes) the C library copies with `rep movsb`. Processors execute it byte by
/// byte if the target lies less than [`STEP`] bytes above the source, modulo [`LOOKS_ALIKE`],
/// because a load then seems to depend on the store before it: 4 KiB took 1,137 ns instead of 42.
const STRING: usize = 2 << 10;
const STEP: usize = 16;
const LOOKS_ALIKE: usize = 4096;

/// How a copy stores its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Ordinary stores, into the caches.
    Cached,
    /// Stores that bypass the caches, where the processor has them.
    Past,
}

/// Copies with the given kind of stores.
///
/// # Safety
/// `from` and `to` must be valid for `len` bytes, and the two ranges must not overlap.
pub(crate) unsafe fn copy_by(from: *const u8, to: *mut u8, len: usize, stores: Stores) {
    match stores {
        // SAFETY: the caller's promise.
        Stores::Past => unsafe { stream::<true>(from, to, len) },
        // SAFETY: the caller's promise.
        Stores::Cached => unsafe { copy_plainly(from, to, len) },
    }
}

/// A reference to the atomic at an address.
///
/// # Safety
/// The bytes of a `T` from `at` on must be mapped as long as the reference is used, and `at` must
/// be aligned for `T`.
#[inline]
const unsafe fn atom<'a, T: Shared>(at: NonNull<u8>) -> &'a T {
    // SAFETY: the caller's promise; `Shared` makes the reference sound.
    unsafe { at.cast::<T>().as_ref() }
}

/// Copies from mapped memory to private memory. A concurrent writer in another process may tear the
/// bytes, which are plain data; 1, 2, 4 and 8 aligned bytes are read atomically.
///
/// # Safety
/// `into.len()` bytes from `from` on must be mapped. They cannot overlap `into`, because no slice
/// of mapped memory is ever made.
#[inline]
pub(crate) unsafe fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let aligned = |bytes| from.as_ptr().addr().is_multiple_of(bytes);
    if into.len() > 8 {
        // SAFETY: the caller's promise.
        unsafe { copy_many::<true>(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    } else if let (Ok(into), true) = (<&mut [u8; 8]>::try_from(&mut *into), aligned(8)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU64>(from) };
        *into = cell.load(Ordering::Relaxed).to_le_bytes();
    } else if let (Ok(into), true) = (<&mut [u8; 4]>::try_from(&mut *into), aligned(4)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU32>(from) };
        *into = cell.load(Ordering::Relaxed).to_le_bytes();
    } else if let (Ok(into), true) = (<&mut [u8; 2]>::try_from(&mut *into), aligned(2)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU16>(from) };
        *into = cell.load(Ordering::Relaxed).to_le_bytes();
    } else {
        // SAFETY: the caller's promise. One byte cannot be torn.
        unsafe { copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }
}

/// Copies from private memory to mapped memory; the counterpart of [`copy_out`].
///
/// # Safety
/// `from.len()` bytes from `to` on must be mapped for writing.
#[inline]
pub(crate) unsafe fn copy_in(to: NonNull<u8>, from: &[u8]) {
    let aligned = |bytes| to.as_ptr().addr().is_multiple_of(bytes);
    if from.len() > 8 {
        // SAFETY: the caller's promise.
        unsafe { copy_many::<false>(from.as_ptr(), to.as_ptr(), from.len()) };
    } else if let (Ok(bytes), true) = (<[u8; 8]>::try_from(from), aligned(8)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU64>(to) };
        cell.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    } else if let (Ok(bytes), true) = (<[u8; 4]>::try_from(from), aligned(4)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU32>(to) };
        cell.store(u32::from_le_bytes(bytes), Ordering::Relaxed);
    } else if let (Ok(bytes), true) = (<[u8; 2]>::try_from(from), aligned(2)) {
        // SAFETY: the caller's promise, and aligned.
        let cell = unsafe { atom::<AtomicU16>(to) };
        cell.store(u16::from_le_bytes(bytes), Ordering::Relaxed);
    } else {
        // SAFETY: the caller's promise. One byte cannot be torn.
        unsafe { copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }
}

/// Copies more than 8 bytes; `OUT` states that `to` is private memory. Common lengths are constants
/// here, so that they need no call.
///
/// Others may write the mapped bytes meanwhile. The copy may then hold any mixture of old and new
/// bytes, but it is one copy: the fences keep the compiler from merging it with other accesses, so
/// that what was validated is what is used. docs/adr/0039 says why these are no atomic copies.
///
/// # Safety
/// `from` and `to` must be valid for `len` bytes, and the two ranges must not overlap.
#[inline]
unsafe fn copy_many<const OUT: bool>(from: *const u8, to: *mut u8, len: usize) {
    compiler_fence(Ordering::SeqCst);
    match len {
        // SAFETY: the caller's promise.
        64 => unsafe { copy_nonoverlapping(from, to, 64) },
        // SAFETY: the caller's promise.
        32 => unsafe { copy_nonoverlapping(from, to, 32) },
        // SAFETY: the caller's promise.
        16 => unsafe { copy_nonoverlapping(from, to, 16) },
        // SAFETY: the caller's promise.
        len if len >= STREAM && OUT => unsafe { stream_out(from, to, len) },
        // SAFETY: the caller's promise.
        len if len >= STREAM => unsafe { stream::<true>(from, to, len) },
        // SAFETY: the caller's promise.
        len => unsafe { copy_plainly(from, to, len) },
    }
    compiler_fence(Ordering::SeqCst);
}

/// Copies with cached stores.
///
/// # Safety
/// As [`copy_many`].
unsafe fn copy_plainly(from: *const u8, to: *mut u8, len: usize) {
    let above = to.addr().wrapping_sub(from.addr()) % LOOKS_ALIKE;
    if len >= STRING && (1..STEP).contains(&above) {
        // SAFETY: the caller's promise.
        unsafe { copy_stepwise(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy_nonoverlapping(from, to, len) }
    }
}

/// Copies line by line: all loads of a line precede its stores.
///
/// # Safety
/// As [`copy_many`].
#[cold]
unsafe fn copy_stepwise(from: *const u8, to: *mut u8, len: usize) {
    type Line = [u128; 4];
    let lines = len / size_of::<Line>();
    for line in 0..lines {
        let at = line * size_of::<Line>();
        // SAFETY: within `len`.
        let (source, target) = unsafe { (from.add(at), to.wrapping_add(at)) };
        // SAFETY: within `len`.
        let line = unsafe { source.cast::<Line>().read_unaligned() };
        // SAFETY: within `len`.
        unsafe { target.cast::<Line>().write_unaligned(line) };
    }
    let done = lines * size_of::<Line>();
    // SAFETY: within `len`.
    let (source, target) = unsafe { (from.add(done), to.wrapping_add(done)) };
    // SAFETY: the last part of what the caller promised.
    unsafe { copy_nonoverlapping(source, target, len - done) };
}

/// Copies a long range to private memory.
///
/// # Safety
/// As [`copy_many`].
#[cold]
unsafe fn stream_out(from: *const u8, to: *mut u8, len: usize) {
    let is_again = LAST.replace(to.addr()) == to.addr();
    if is_again && len <= AGAIN {
        // SAFETY: the caller's promise.
        unsafe { stream::<false>(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { stream::<true>(from, to, len) }
    }
}

/// Copies with loads that leave nothing in the caches, and with stores that bypass them if `PAST`.
/// The copy is complete in program order when the function returns.
///
/// # Safety
/// As [`copy_many`].
#[cfg(target_arch = "x86_64")]
#[cold]
unsafe fn stream<const PAST: bool>(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    // SAFETY: the first part of what the caller promised.
    unsafe { copy_nonoverlapping(from, to, head) };
    for line in 0..lines {
        let at = head + line * LINE;
        // SAFETY: a hint; the processor does not access an address past the end.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(from.wrapping_add(at + AHEAD).cast()) };
        // SAFETY: within `len`, and aligned, as `head` made it.
        unsafe { copy_line::<PAST>(from.wrapping_add(at), to.wrapping_add(at)) };
    }
    if PAST {
        order_stores();
    }
    let done = head + lines * LINE;
    // SAFETY: within `len`.
    let (source, target) = unsafe { (from.add(done), to.wrapping_add(done)) };
    // SAFETY: the last part of what the caller promised.
    unsafe { copy_nonoverlapping(source, target, len - done) };
}

/// The parts that [`copy_past`] copies side by side. On an AMD EPYC 64 MiB took 9.9 ms in one part
/// after the other, 8.5 ms in four and 9.0 ms in eight.
#[cfg(target_arch = "x86_64")]
const PARTS: usize = 4;

/// Copies with stores that bypass the caches. The source is in the caches afterwards as far as it
/// fits, for a caller that reads it again. The copy is complete in program order when the function
/// returns.
///
/// # Safety
/// As [`copy_many`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_past(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let head = to.align_offset(LINE).min(len);
    let part = (len - head) / LINE / PARTS * LINE;
    // SAFETY: the first part of what the caller promised.
    unsafe { copy_nonoverlapping(from, to, head) };
    for offset in (head..head + part).step_by(LINE) {
        for at in (0..PARTS).map(|number| offset + number * part) {
            // SAFETY: a hint; the processor does not access an address past the end.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast()) };
            // SAFETY: within `len`, and aligned, as `head` made it.
            unsafe { copy_line::<true>(from.wrapping_add(at), to.wrapping_add(at)) };
        }
    }
    order_stores();
    let done = head + PARTS * part;
    // SAFETY: within `len`.
    let (source, target) = unsafe { (from.add(done), to.wrapping_add(done)) };
    // SAFETY: the last part of what the caller promised.
    unsafe { copy_nonoverlapping(source, target, len - done) };
}

/// The length of a cache line in bytes.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
/// Prefetch distance in bytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8 * LINE;

/// Copies a line, with stores that bypass the caches if `PAST`.
///
/// # Safety
/// As [`copy_many`] for the length of a line; `to` must be aligned to it.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_line<const PAST: bool>(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128};
    for part in (0..LINE).step_by(size_of::<__m128i>()) {
        // SAFETY: within the line.
        let source = unsafe { from.add(part) };
        // SAFETY: within the line; unaligned loads are allowed.
        let bytes = unsafe { _mm_loadu_si128(source.cast()) };
        // SAFETY: within the line.
        let target = unsafe { to.add(part) };
        if PAST {
            // SAFETY: within the line, and aligned, as the caller promises.
            unsafe { _mm_stream_si128(target.cast(), bytes) };
        } else {
            // SAFETY: within the line.
            unsafe { _mm_storeu_si128(target.cast(), bytes) };
        }
    }
}

/// Orders stores that bypass the caches before later stores.
#[cfg(target_arch = "x86_64")]
fn order_stores() {
    // SAFETY: part of every x86-64. Before it, these stores are not ordered with others.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies with cached stores: this architecture offers no others here.
///
/// # Safety
/// As [`copy_many`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream<const PAST: bool>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_nonoverlapping(from, to, len) }
}

/// Copies with cached stores: this architecture offers no others here.
///
/// # Safety
/// As [`copy_many`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_past(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_nonoverlapping(from, to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251).to_le_bytes()[0]).collect()
    }

    #[test]
    fn what_goes_a_few_bytes_up_is_copied_whole_and_nothing_beside() {
        let source = pattern(3 * LOOKS_ALIKE);
        let from = &source[source.as_ptr().align_offset(LOOKS_ALIKE)..];
        for len in [STRING - 1, STRING, STRING + 1, STRING + 63, 2 * LOOKS_ALIKE - 1] {
            for above in 0..=STEP {
                let mut memory = vec![0xee; 4 * LOOKS_ALIKE];
                let at = memory.as_ptr().align_offset(LOOKS_ALIKE) + above;
                // SAFETY: `len` bytes are there on both sides.
                unsafe { copy_plainly(from.as_ptr(), memory[at..].as_mut_ptr(), len) };
                assert_eq!(memory[at..at + len], from[..len], "{len} B, {above} B up");
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn every_length_is_copied_whole_and_nothing_beside() {
        let lens = (0..140).chain([4096, STREAM - 1, STREAM, STREAM + 1, STREAM + 4097]);
        for len in lens {
            for shift in [0, 1, 8, 17] {
                let source = pattern(len);
                let mut memory = vec![0xee; len + 64];
                let at = NonNull::from(&mut memory[shift]);
                // SAFETY: `len` bytes follow.
                unsafe { copy_in(at, &source) };
                assert_eq!(memory[shift..shift + len], source, "in: {len} B, shifted by {shift}");
                assert!(memory[..shift].iter().chain(&memory[shift + len..]).all(|b| *b == 0xee));
                let mut back = vec![0; len + 2];
                // The second read goes into the same memory as the first.
                for time in 1..=2 {
                    back.fill(0xdd);
                    // SAFETY: `len` bytes follow.
                    unsafe { copy_out(at, &mut back[1..=len]) };
                    assert_eq!(back[1..=len], source, "out: {len} B, shifted by {shift}, {time}");
                    assert_eq!((back[0], back[len + 1]), (0xdd, 0xdd), "{len} B: beside it");
                }
            }
        }
    }
    #[test]
    fn a_copy_past_the_caches_is_whole_and_changes_nothing_beside() {
        let lens = (0..2 * PARTS * LINE).chain([4096, (64 << 10) - 1, 64 << 10, (64 << 10) + 777]);
        for len in lens {
            for shift in [0, 1, 17, 63] {
                let source = pattern(len);
                let mut memory = vec![0xee; len + 128];
                let at = memory.as_ptr().align_offset(LINE) + shift;
                // SAFETY: `len` bytes are there on both sides.
                unsafe { copy_past(source.as_ptr(), memory[at..].as_mut_ptr(), len) };
                assert_eq!(memory[at..at + len], source, "{len} B, shifted by {shift}");
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|b| *b == 0xee));
            }
        }
    }
}
