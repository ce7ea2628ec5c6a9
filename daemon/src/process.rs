//! Identification of processes, which distinguishes a process from a later one with the same id.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Returns the start time of the process in kernel ticks; `None` if no such process lives.
pub(crate) fn started(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any characters; the fields after it do not.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let is_zombie = fields.next()? == "Z";
    // Field 22 of the file; field 1 is the process id, and field 3 the state just read.
    let started = fields.nth(18)?.parse().ok()?;
    (!is_zombie).then_some(started)
}

/// Returns true if the process with this id and start time lives.
pub(crate) fn is_alive(pid: u64, started_at: u64) -> bool {
    started(pid) == Some(started_at)
}

/// Returns a descriptor that becomes readable when the process ends.
pub(crate) fn watch(pid: u64) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::NONBLOCK).ok()
}

/// Waits for the end of standard input if `asked`, else for ever.
pub(crate) async fn stdin_closed(asked: bool) {
    if !asked {
        return std::future::pending().await;
    }
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    // A dedicated thread, because reading standard input can't be cancelled.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(ended);
    });
    let _ = end.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let me = u64::from(std::process::id());
        let started_at = started(me).unwrap();
        assert!(is_alive(me, started_at));
        assert!(!is_alive(me, started_at + 1));
        assert_eq!(started(0), None);
        assert!(watch(me).is_some());
    }
}
