//! The number of instructions of an operation, counted by single-stepping.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, PublishCas, PublishMode, RackId};

use crate::alloc::Peer;

/// The argument with which this program is the counted one.
pub const ARGUMENT: &str = "--steps";
/// Operations between two marks. The difference between the counts for [`MORE`] and for `FEW`
/// operations excludes the surrounding instructions.
const FEW: usize = 4;
/// `FEW` and `MORE` together are less than a thread's cache holds of one size.
const MORE: usize = 24;
/// Objects that are allocated and freed before counting, so that the cache is full enough.
const HELD: usize = 40;

/// Instructions of one operation each, in a known page of the client's rack.
pub(crate) struct Steps {
    pub(crate) read: f64,
    pub(crate) write: f64,
    /// Instructions of a read and of a write that are locked, fences, or system calls.
    pub(crate) costly: [f64; 2],
    pub(crate) alloc: f64,
    pub(crate) free: f64,
    pub(crate) swap: f64,
    pub(crate) ping: f64,
    pub(crate) publication: f64,
    pub(crate) peer_alloc: f64,
    pub(crate) peer_free: f64,
}

/// The counted operations, in this order.
const OPERATIONS: [fn(&mut Counted, usize); 9] = [
    Counted::read,
    Counted::write,
    Counted::alloc,
    Counted::free,
    Counted::swap,
    Counted::ping,
    Counted::publish,
    Counted::peer_alloc,
    Counted::peer_free,
];

/// Counts in a process of its own.
pub(crate) fn count(dir: &Path) -> anyhow::Result<Steps> {
    let mut child = Command::new(std::env::current_exe()?).arg(ARGUMENT).arg(dir).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let counts = (|| {
        to_mark(pid, None)?;
        let mut counts = [Count::default(); OPERATIONS.len()];
        for count in &mut counts {
            let (mut few, mut more) = (Count::default(), Count::default());
            to_mark(pid, Some(&mut few))?;
            to_mark(pid, Some(&mut more))?;
            *count = more.since(few);
        }
        ptrace::detach(pid, None)?;
        anyhow::Ok(counts)
    })();
    if counts.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let counts = counts?;
    anyhow::ensure!(status.success(), "the counted program failed: {status}");
    let each = |count: u32| f64::from(count) / (MORE - FEW) as f64;
    let costly = [counts[0], counts[1]].map(|count| each(count.costly));
    let [read, write, alloc, free, swap, ping, publication, peer_alloc, peer_free] =
        counts.map(|count| each(count.steps));
    Ok(Steps { read, write, costly, alloc, free, swap, ping, publication, peer_alloc, peer_free })
}

/// Instructions, and those among them that are locked, fences, or system calls.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    steps: u32,
    costly: u32,
}

impl Count {
    const fn since(self, before: Self) -> Self {
        Self {
            steps: self.steps.saturating_sub(before.steps),
            costly: self.costly.saturating_sub(before.costly),
        }
    }
}

/// Runs the program to its next mark, by single steps if they are counted.
fn to_mark(pid: Pid, mut count: Option<&mut Count>) -> anyhow::Result<()> {
    loop {
        if let Some(count) = &mut count {
            count.steps += 1;
            count.costly += u32::from(is_costly(next_instruction(pid)?));
            ptrace::step(pid, None)?;
        }
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => return Ok(()),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => anyhow::bail!("the counted program: {other:?}"),
        }
    }
}

/// The first bytes of the next instruction.
fn next_instruction(pid: Pid) -> anyhow::Result<[u8; 8]> {
    let registers = ptrace::getregs(pid)?;
    let at = usize::try_from(registers.rip)?;
    let word = ptrace::read(pid, std::ptr::without_provenance_mut(at))?;
    Ok(word.to_le_bytes())
}

/// Returns true if the instruction is locked, a fence, or a system call (x86-64).
fn is_costly(instruction: [u8; 8]) -> bool {
    const LOCK: u8 = 0xf0;
    let is_prefix = |byte: u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let start = instruction.iter().position(|byte| !is_prefix(*byte)).unwrap_or(0);
    match &instruction[start..] {
        [LOCK, ..] => true,
        // Exchanges with memory are implicitly locked.
        [0x86 | 0x87, operands, ..] => *operands < 0xc0,
        [0x0f, 0x05 | 0x34, ..] => true,
        [0x0f, 0xae, operands, ..] => matches!(operands, 0xe8 | 0xf0 | 0xf8),
        [0xcd, 0x80, ..] => true,
        _ => false,
    }
}

/// The counted program.
struct Counted {
    pool: Pool,
    addr: GlobalAddr,
    bytes: [u8; 64],
    /// The object to which the second word of `addr` points.
    linked: GlobalAddr,
    objects: [GlobalAddr; FEW + MORE],
    peers: [*mut u8; FEW + MORE],
}

/// The places of `count` objects; they differ between the two counts.
const fn places(count: usize) -> std::ops::Range<usize> {
    let start = if count == FEW { 0 } else { FEW };
    start..start + count
}

impl Counted {
    fn read(&mut self, count: usize) {
        for _ in 0..count {
            self.pool.read(black_box(self.addr), &mut self.bytes).expect("a good address");
        }
    }

    fn write(&mut self, count: usize) {
        for _ in 0..count {
            self.pool.write(black_box(self.addr), &self.bytes).expect("a good address");
        }
    }

    fn alloc(&mut self, count: usize) {
        for object in &mut self.objects[places(count)] {
            *object = self.pool.alloc(black_box(64)).expect("a pool with room");
        }
    }

    fn free(&mut self, count: usize) {
        for object in &self.objects[places(count)] {
            self.pool.free(*object).expect("an object in use");
        }
    }

    fn swap(&mut self, count: usize) {
        for new in 0..count as u64 {
            let found = self.pool.compare_and_swap(black_box(self.addr), new, new + 1);
            black_box(found).expect("a good address");
        }
    }

    fn ping(&mut self, count: usize) {
        for _ in 0..count {
            self.pool.ping().expect("the daemon answers");
        }
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            let mut reservation = self.pool.reserve(black_box(64)).expect("a pool with room");
            let token = reservation.token().to_le_bytes();
            self.pool.write(reservation.addr(), &token).expect("a good address");
            let link = PublishCas {
                addr: GlobalAddr::from_raw(self.addr.raw() + 8),
                expected: self.linked.raw(),
                new: reservation.addr().raw(),
                mask: u64::MAX,
                replaced: Some(self.linked).filter(|addr| !addr.is_null()),
                mode: PublishMode::Plain,
            };
            let found = self.pool.publish(&mut reservation, &link).expect("a good address");
            assert_eq!(found, link.expected, "nobody else links here");
            self.linked = reservation.addr();
            self.pool.finish(reservation).expect("an object in use");
        }
    }

    fn peer_alloc(&mut self, count: usize) {
        for object in &mut self.peers[places(count)] {
            *object = Peer::alloc();
        }
    }

    fn peer_free(&mut self, count: usize) {
        for object in &self.peers[places(count)] {
            Peer::free(*object);
        }
    }
}

/// Runs as the counted program.
pub fn be_counted(dir: &Path) -> anyhow::Result<()> {
    let pool = Pool::open(ClientOptions::new(dir, RackId(0)))?;
    let addr = pool.alloc(64)?;
    pool.write(addr, &[0; 64])?;
    let held = (0..HELD).map(|_| pool.alloc(64)).collect::<Result<Vec<_>, _>>()?;
    held.into_iter().try_for_each(|object| pool.free(object))?;
    let mut counted = Counted {
        pool,
        addr,
        bytes: [0; 64],
        linked: GlobalAddr::NULL,
        objects: [GlobalAddr::NULL; FEW + MORE],
        peers: [std::ptr::null_mut(); FEW + MORE],
    };
    // A warm-up before counting.
    OPERATIONS.iter().for_each(|operation| operation(&mut counted, MORE));
    ptrace::traceme().context("can't be traced")?;
    raise(Signal::SIGSTOP)?;
    for operation in OPERATIONS {
        for count in [FEW, MORE] {
            operation(&mut counted, count);
            raise(Signal::SIGSTOP)?;
        }
    }
    counted.pool.free(counted.linked)?;
    counted.pool.free(addr)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> bool {
        let mut instruction = [0x90; 8];
        instruction[..bytes.len()].copy_from_slice(bytes);
        is_costly(instruction)
    }

    #[test]
    fn what_waits_is_told_from_what_does_not() {
        // lock cmpxchg, xchg with memory, mfence, lfence, sfence, syscall.
        let costly: [&[u8]; 6] = [
            &[0xf0, 0x48, 0x0f, 0xb1, 0x0f],
            &[0x48, 0x87, 0x07],
            &[0x0f, 0xae, 0xf0],
            &[0x0f, 0xae, 0xe8],
            &[0x0f, 0xae, 0xf8],
            &[0x0f, 0x05],
        ];
        assert!(costly.into_iter().all(of));
        // mov, xchg of registers, fxsave, a vector move, ret.
        let cheap: [&[u8]; 5] = [
            &[0x48, 0x8b, 0x07],
            &[0x48, 0x87, 0xc3],
            &[0x0f, 0xae, 0x07],
            &[0xc5, 0xfc, 0x10, 0x07],
            &[0xc3],
        ];
        assert!(!cheap.into_iter().any(of));
    }
}
