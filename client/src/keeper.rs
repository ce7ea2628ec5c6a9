//! The keeper: the thread that notices the end of the daemon's socket and connects to the next
//! daemon. It also counts up the beat, so that the daemon knows that the process runs.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rackpool_wire::control::ControlRefusal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection::{Connection, DaemonLink, Reopened, lock};
use crate::{DaemonError, OpenError};

/// Interval of the attempts to reach a daemon.
const RETRY: Duration = Duration::from_millis(20);
/// Interval at which the keeper of an idle link checks whether the pool is still open.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Starts the keeper. It ends when the pool is closed or dropped, or the client is forgotten.
pub(crate) fn start(connection: &Arc<Connection>) -> std::io::Result<()> {
    let weak = Arc::downgrade(connection);
    std::thread::Builder::new().name("rackpool-keeper".into()).spawn(move || keep(&weak))?;
    Ok(())
}

fn keep(weak: &Weak<Connection>) {
    loop {
        let Some(connection) = weak.upgrade() else { return };
        connection.beat();
        match connection.link() {
            DaemonLink::Closed | DaemonLink::Forgotten => return,
            DaemonLink::Up => {
                if watch_for_end(connection)
                    && let Some(connection) = weak.upgrade()
                    // Closing the pool ends the socket too.
                    && connection.link() == DaemonLink::Up
                {
                    tracing::warn!(
                        "{}: the connection to the daemon has ended: reconnecting",
                        connection.rack
                    );
                    connection.set_link(DaemonLink::Down);
                }
            }
            DaemonLink::Down | DaemonLink::Overdue => {
                let began = Instant::now();
                drop(connection);
                find(weak, began);
            }
        }
    }
}

/// Waits up to [`LOOK`]. Returns true if the daemon closed its end of the socket.
fn watch_for_end(connection: Arc<Connection>) -> bool {
    let watched = match &*lock(&connection.control) {
        Some(control) => control.watch(),
        None => return false,
    };
    drop(connection);
    let Ok(socket) = watched else { return true };
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    match poll(&mut fds, Some(&LOOK)) {
        Ok(0) | Err(_) => false,
        Ok(_) => fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
    }
}

fn find(weak: &Weak<Connection>, began: Instant) {
    loop {
        let Some(connection) = weak.upgrade() else { return };
        connection.beat();
        match connection.reopen() {
            Ok(Reopened::Served) => {
                tracing::info!("{}: reconnected to the daemon", connection.rack);
                return;
            }
            Ok(Reopened::BarrierLost) => {
                tracing::error!(
                    "{}: the daemon came back without the kernel's barrier that this program \
                     relies on (it runs on another kernel, or in a sandbox): open the pool again",
                    connection.rack
                );
                connection.set_link(DaemonLink::Forgotten);
                return;
            }
            Err(OpenError::Refused(ControlRefusal::UnknownClient)) => {
                tracing::error!("{}: {}", connection.rack, DaemonError::Forgotten);
                connection.set_link(DaemonLink::Forgotten);
                return;
            }
            Err(error) => tracing::debug!("{}: {error}", connection.rack),
        }
        if connection.link() == DaemonLink::Closed {
            return;
        }
        if began.elapsed() > connection.options.reconnect_timeout {
            connection.set_link(DaemonLink::Overdue);
        }
        drop(connection);
        std::thread::sleep(RETRY);
    }
}
