use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::Server;
use crate::EndpointId;
use crate::tcp::inbox::{Ending, InboxEvent};

/// How long the second channel of an endpoint may outlive the first.
const SECOND_LANE: Duration = Duration::from_secs(1);

/// An endpoint whose posting channel has ended: the owner wants to know how the other one does.
pub(super) struct Asked {
    endpoint: EndpointId,
    until: Instant,
}

/// A posting channel of this side that is watched until its peer has closed it: then no write that
/// was sent on it can land any more.
pub(super) struct Draining {
    endpoint: EndpointId,
    socket: TcpStream,
    until: Instant,
}

/// The ends of endpoints.
impl Server {
    /// Serves an endpoint no more.
    pub(super) fn end(&mut self, endpoint: EndpointId, bye: bool, posting: Option<TcpStream>) {
        if let Some(mut channel) = self.channels.remove(&endpoint)
            && bye
        {
            channel.say_bye();
        }
        let Some(socket) = posting else {
            self.inbox.tell(InboxEvent::Ended { endpoint });
            return;
        };
        let data = epoll::EventData::new_u64(endpoint.0);
        self.inbox.tell(InboxEvent::Fenced { endpoint });
        // Not watched it is looked at when its time is over.
        let _ = epoll::add(&self.epoll, socket.as_fd(), data, epoll::EventFlags::IN);
        let until = Instant::now() + self.dead_after;
        self.draining.push(Draining { endpoint, socket, until });
    }

    /// The owner wants to know how the channel ends, which it should do any moment.
    pub(super) fn ask(&mut self, endpoint: EndpointId) {
        // One that has ended has been reported.
        if self.channels.contains_key(&endpoint) {
            self.asked.push(Asked { endpoint, until: Instant::now() + SECOND_LANE });
        }
    }

    /// Reports the endings that are complete.
    pub(super) fn finish_endings(&mut self) {
        if self.asked.is_empty() && self.draining.is_empty() {
            return;
        }
        let now = Instant::now();
        let Self { asked, draining, channels, inbox, .. } = self;
        asked.retain(|asked| {
            if !channels.contains_key(&asked.endpoint) {
                return false;
            }
            let waits = now < asked.until;
            if !waits {
                channels.remove(&asked.endpoint);
                let endpoint = asked.endpoint;
                inbox.tell(InboxEvent::ChannelEnded { endpoint, ending: Ending::Gone });
            }
            waits
        });
        draining.retain(|one| {
            let waits = now < one.until && is_open(&one.socket);
            if !waits {
                inbox.tell(InboxEvent::Ended { endpoint: one.endpoint });
            }
            waits
        });
    }

    /// How long until an ending is due.
    pub(super) fn next_ending(&self) -> Option<Duration> {
        let asked = self.asked.iter().map(|asked| asked.until);
        let next = asked.chain(self.draining.iter().map(|one| one.until)).min()?;
        // Rounded up, so that it has passed afterwards.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }
}

/// Throws away what the peer still answers; false when it has closed the connection.
fn is_open(mut socket: &TcpStream) -> bool {
    let mut answers = [0; 4096];
    loop {
        match socket.read(&mut answers) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}
