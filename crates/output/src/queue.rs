//! The queues of lines for standard error and standard output.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::write;
use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Capacity of a queue, in lines.
const WAITING: usize = 1024;
/// How long a program's end waits for its lines to be written.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Retry interval of the writer after `EAGAIN`, and of `flush` while the queue is full.
const AGAIN: Duration = Duration::from_millis(10);

/// An entry of the queue, for the writer thread.
enum Entry {
    Line(Vec<u8>),
    /// Answered by the writer once all earlier entries were written or lost.
    Flush(SyncSender<()>),
}

/// The queue of one stream.
struct Queue {
    /// `None` when the writer thread could not be started: all lines are lost.
    entries: Option<SyncSender<Entry>>,
    lost: Arc<AtomicU64>,
}

static OUTPUT: OnceLock<Queue> = OnceLock::new();
static ERROR: OnceLock<Queue> = OnceLock::new();

fn queues() -> impl Iterator<Item = &'static Queue> {
    [&OUTPUT, &ERROR].into_iter().filter_map(OnceLock::get)
}

fn error_queue() -> &'static Queue {
    ERROR.get_or_init(|| Queue::start(|bytes| write(io::stderr(), bytes)))
}

/// Returns the number of lines of logs and banners that this process could not write.
#[must_use]
pub fn lost_lines() -> u64 {
    queues().map(|queue| queue.lost.load(Ordering::Relaxed)).sum()
}

/// Queues a line for standard output. The line may be lost. Never blocks.
pub fn banner(text: impl fmt::Display) {
    let queue = OUTPUT.get_or_init(|| Queue::start(|bytes| write(io::stdout(), bytes)));
    queue.line(format!("{text}\n").into_bytes());
}

/// Queues a line for standard error and waits at most a second until it is written.
pub fn note(text: impl fmt::Display) {
    let queue = error_queue();
    queue.line(format!("{text}\n").into_bytes());
    queue.flush(LAST_WAIT);
}

/// Waits at most a second until all lines are written or lost.
pub fn flush() {
    queues().for_each(|queue| queue.flush(LAST_WAIT));
}

impl Queue {
    /// Starts a thread that writes the queue's lines with `write`, which may block and fail.
    fn start(write: impl FnMut(&[u8]) -> nix::Result<usize> + Send + 'static) -> Self {
        let (entries, waiting) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer::new(write, Arc::clone(&lost));
        // The writer thread must not take signals that other threads wait for.
        let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let thread = std::thread::Builder::new().name("log".into());
        let thread = thread.spawn(move || writer.run(&waiting));
        if let Ok(mask) = blocked {
            // Restoring the previous mask does not fail.
            let _ = mask.thread_set_mask();
        }
        Self { entries: thread.is_ok().then_some(entries), lost }
    }

    /// Queues a line, or counts it as lost if the queue is full.
    fn line(&self, line: Vec<u8>) {
        let sent = self.entries.as_ref().is_some_and(|to| to.try_send(Entry::Line(line)).is_ok());
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, spin: Duration) {
        let Some(entries) = &self.entries else { return };
        let deadline = Instant::now() + spin;
        let (done, written) = sync_channel(1);
        let mut entry = Entry::Flush(done);
        while let Err(error) = entries.try_send(entry) {
            let TrySendError::Full(back) = error else { return };
            if Instant::now() >= deadline {
                return;
            }
            entry = back;
            std::thread::sleep(AGAIN);
        }
        // Lines that are not written by the deadline are lost with the process.
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Writes lines to a file that may refuse them.
struct Writer<W> {
    write: W,
    lost: Arc<AtomicU64>,
    /// The number of lost lines that the file already reports.
    told: u64,
    /// Set when the last write failed.
    fails: bool,
    /// Set when the file ends with a part of a line.
    cut: bool,
}

impl<W: FnMut(&[u8]) -> nix::Result<usize>> Writer<W> {
    const fn new(write: W, lost: Arc<AtomicU64>) -> Self {
        Self { write, lost, told: 0, fails: false, cut: false }
    }

    fn run(&mut self, waiting: &Receiver<Entry>) {
        loop {
            let entry = match waiting.try_recv() {
                Ok(entry) => entry,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    // Lines may have been lost because the queue was full; the queue is empty now.
                    if !self.fails {
                        self.tell_lost();
                    }
                    let Ok(entry) = waiting.recv() else { return };
                    entry
                }
            };
            match entry {
                Entry::Line(line) => self.line(&line),
                Entry::Flush(done) => {
                    // The caller may have stopped waiting.
                    let _ = done.try_send(());
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        let is_written = (!self.fails || self.tell_lost()) && self.put(line);
        if !is_written {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes how many lines were lost since the last such report. Returns false if the write
    /// fails.
    fn tell_lost(&mut self) -> bool {
        let all = self.lost.load(Ordering::Relaxed);
        let new = all - self.told;
        if new == 0 {
            return true;
        }
        let lines = if new == 1 { "1 line was".into() } else { format!("{new} lines were") };
        let start = if self.cut { "\n" } else { "" };
        let is_written =
            self.put(format!("{start}{lines} lost: this log could not be written\n").as_bytes());
        if is_written {
            self.told = all;
        }
        is_written
    }

    /// Writes all bytes. On an error, writes as many as possible and returns false.
    fn put(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match (self.write)(bytes) {
                Ok(count) if count > 0 => {
                    bytes = bytes.get(count..).unwrap_or_default();
                    self.cut = !bytes.is_empty();
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => std::thread::sleep(AGAIN),
                Ok(_) | Err(_) => {
                    self.fails = true;
                    return false;
                }
            }
        }
        self.fails = false;
        true
    }
}

/// A log line under construction. Dropping it queues it.
pub(crate) struct Line(Vec<u8>);

impl Line {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            error_queue().line(std::mem::take(&mut self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A file with room for `room` bytes.
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    fn put(disk: &RefCell<Disk>, bytes: &[u8]) -> nix::Result<usize> {
        let mut disk = disk.borrow_mut();
        let count = bytes.len().min(disk.room);
        if count == 0 {
            return Err(Errno::ENOSPC);
        }
        disk.room -= count;
        disk.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_and_told_when_it_has_room() {
        let disk = RefCell::new(Disk { written: Vec::new(), room: 9 });
        let mut writer = Writer::new(|bytes: &[u8]| put(&disk, bytes), Arc::default());
        for line in ["first\n", "second\n", "third\n"] {
            writer.line(line.as_bytes());
        }
        disk.borrow_mut().room = 1000;
        writer.line(b"fourth\n");
        writer.line(b"fifth\n");
        let text = String::from_utf8(disk.borrow().written.clone()).unwrap();
        let told = "first\nsec\n2 lines were lost: this log could not be written\nfourth\nfifth\n";
        assert_eq!(text, told);
    }

    #[test]
    fn a_reader_that_stands_still_blocks_nobody_and_learns_what_it_missed() {
        let (go_on, may_go_on) = sync_channel::<()>(0);
        let (written, lines) = sync_channel(4 * WAITING);
        let mut stands = true;
        let queue = Queue::start(move |bytes| {
            if std::mem::take(&mut stands) {
                may_go_on.recv().unwrap();
            }
            written.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            Ok(bytes.len())
        });
        let all = 3 * WAITING;
        (0..all).for_each(|line| queue.line(format!("{line}\n").into_bytes()));
        let lost = usize::try_from(queue.lost.load(Ordering::Relaxed)).unwrap();
        assert!(lost >= 2 * WAITING - 1, "{lost}");
        go_on.send(()).unwrap();
        queue.flush(Duration::from_secs(20));
        drop(queue);
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(lines[0], "0\n");
        let told = format!("{lost} lines were lost: this log could not be written\n");
        assert_eq!(lines.last(), Some(&told));
        assert_eq!(lines.len(), all - lost + 1);
    }
}
