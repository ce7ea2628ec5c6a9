use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::Server;
use crate::EndpointId;
use crate::tcp::inbox::{Ending, InboxEvent};

/// Time by which the serving channel of an endpoint may outlive the posting channel.
const SECOND_CHANNEL: Duration = Duration::from_secs(1);

/// An endpoint whose posting channel has ended and whose owner asked how the serving channel ends.
pub(super) struct Asked {
    endpoint: EndpointId,
    until: Instant,
}

/// A posting channel of this side, watched until the peer has closed it. Then no write that was
/// sent on it can land any more.
pub(super) struct Draining {
    endpoint: EndpointId,
    socket: TcpStream,
    until: Instant,
}

/// The end of endpoints.
impl Server {
    /// Stops serving an endpoint.
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
        // If this fails, the channel is checked when its time is over.
        let _ = epoll::add(&self.epoll, socket.as_fd(), data, epoll::EventFlags::IN);
        let until = Instant::now() + self.dead_after;
        self.draining.push(Draining { endpoint, socket, until });
    }

    /// The owner asks how the serving channel ends. The end is expected immediately, since the
    /// posting channel has ended.
    pub(super) fn ask(&mut self, endpoint: EndpointId) {
        // A channel that has already ended has been reported.
        if self.channels.contains_key(&endpoint) {
            self.asked.push(Asked { endpoint, until: Instant::now() + SECOND_CHANNEL });
        }
    }

    /// Reports the endings that are complete or have timed out.
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

    /// Time until the next ending times out.
    pub(super) fn next_ending(&self) -> Option<Duration> {
        let asked = self.asked.iter().map(|asked| asked.until);
        let next = asked.chain(self.draining.iter().map(|one| one.until)).min()?;
        // Rounded up, so that the deadline has passed after the wait.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }
}

/// Discards the peer's remaining answers. Returns false if the peer has closed the connection.
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
