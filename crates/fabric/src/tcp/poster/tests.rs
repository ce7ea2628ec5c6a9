use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::conformance::memory::FileMemory;
use crate::conformance::pair::{ok, transfer, write};
use crate::tcp::frame::Response;

const LEN: u32 = 64;

/// A channel whose peer has answered the first write and died before it read more, so this side's
/// next send fails. The second write has not been sent.
fn answered_and_gone(regions: &mut Regions) -> Poster {
    let listener = ok(TcpListener::bind("127.0.0.1:0"));
    let socket = ok(TcpStream::connect(ok(listener.local_addr())));
    ok(socket.set_nonblocking(true));
    let (mut peer, _) = ok(listener.accept());
    let own = regions.register(Arc::new(FileMemory::anonymous(u64::from(LEN))));
    let mut poster = Poster::new(EndpointId(7), socket, vec![4096], Buffer::new());
    ok(poster.take(&[write(1, transfer(own, 0, 0, LEN))], regions));
    ok(poster.flush(regions));
    ok(poster.take(&[write(2, transfer(own, 0, 0, LEN))], regions));
    let arrived = poll(&mut [PollFd::new(&peer, PollFlags::IN)], None);
    assert_eq!(arrived, Ok(1));
    ok(peer.write_all(&Response::Done { count: 1 }.encode()));
    // Unread bytes make the kernel send a reset instead of an orderly end.
    drop(peer);
    let mut ended = [PollFd::new(&poster.socket, PollFlags::empty())];
    assert_eq!(poll(&mut ended, None), Ok(1));
    assert!(ended[0].revents().contains(PollFlags::ERR | PollFlags::HUP));
    poster
}

fn first_is_done(events: &[Event]) {
    let done = Event::Completed { endpoint: EndpointId(7), id: 1, result: Ok(()) };
    assert_eq!(events, [done], "its answer had come");
}

#[test]
fn an_answer_counts_that_came_before_sending_failed() {
    let (mut regions, mut events) = (Regions::default(), Vec::new());
    let mut poster = answered_and_gone(&mut regions);
    assert_eq!(poster.poll(&mut regions, &mut events), Err(Ending::Gone));
    first_is_done(&events);
    events.clear();
    poster.fail(&FabricError::PeerGone, &mut regions, &mut events);
    let failed = Err(FabricError::PeerGone);
    assert_eq!(events, [Event::Completed { endpoint: EndpointId(7), id: 2, result: failed }]);
}

#[test]
fn an_answer_counts_that_came_before_a_flush_failed() {
    let (mut regions, mut events) = (Regions::default(), Vec::new());
    let mut poster = answered_and_gone(&mut regions);
    poster.try_flush(&regions);
    assert!(poster.has_ended_or_answered(), "the next poll has to tell of it");
    assert_eq!(poster.poll(&mut regions, &mut events), Err(Ending::Gone));
    first_is_done(&events);
}
