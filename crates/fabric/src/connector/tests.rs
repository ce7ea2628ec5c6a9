//! Both ends of a handshake in one thread, over a transport that has nothing but a counter.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use rackpool_model::{FabricKey, Incarnation, RackId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::Role;
use crate::handshake::{Identity, Protocol, START_BYTES};

struct TestTransport {
    identity: Identity,
    outcomes: Sender<Outcome<Self>>,
}

#[derive(Default, Debug, PartialEq, Eq)]
enum Half {
    #[default]
    Nothing,
    Probing(Vec<u8>),
    Joined(Vec<u8>),
}

impl Transport for TestTransport {
    const PROTOCOL: &'static Protocol = &Protocol { magic: *b"racktest", name: "test" };
    const CHANNELS: usize = 1;
    const CONNECT_MS: u64 = 250;
    const WATCHES: bool = true;
    type Address = &'static str;
    type Half = Half;
    type Link = Vec<u8>;
    type Remains = ();

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&self) -> Result<Vec<Half>, FabricError> {
        Ok(vec![Half::Nothing])
    }

    fn new_socket(&self, _: &&'static str) -> rustix::io::Result<OwnedFd> {
        Ok(pair().0)
    }

    fn connect(&self, _: &OwnedFd, _: &&'static str) -> rustix::io::Result<bool> {
        Ok(true)
    }

    fn prepare(&self, _: &OwnedFd) -> Result<(), FabricError> {
        Ok(())
    }

    fn offer(&self, connection: &mut Connection<Self>) -> Result<(), FabricError> {
        connection.send_offer(self, b"asked".to_vec(), &[])
    }

    /// The initiator probes and says ready, as over verbs.
    fn offered(&self, one: &mut Connection<Self>, content: &[u8]) -> Result<Next, FabricError> {
        one.half = match one.role() {
            Role::Initiator => Half::Probing(content.to_vec()),
            Role::Acceptor => {
                one.send_offer(self, b"given".to_vec(), &[])?;
                Half::Joined(content.to_vec())
            }
        };
        Ok(Next::Wait)
    }

    fn is_probing(half: &Half) -> bool {
        matches!(half, Half::Probing(_))
    }

    fn probe(&self, one: &mut Connection<Self>) -> Result<Next, FabricError> {
        if let Half::Probing(content) = std::mem::take(&mut one.half) {
            one.half = Half::Joined(content);
        }
        one.send_ready()?;
        Ok(Next::Done)
    }

    fn establish(&mut self, channels: Vec<Connection<Self>>) -> Result<Vec<u8>, FabricError> {
        match channels.into_iter().next().map(|one| one.half) {
            Some(Half::Joined(content)) => Ok(content),
            half => panic!("{half:?}"),
        }
    }

    fn report(&mut self, outcome: Outcome<Self>) {
        self.outcomes.send(outcome).unwrap();
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// A connector that does not run, with its reports.
fn connector(rack: u16) -> (Connector<TestTransport>, Receiver<Outcome<TestTransport>>) {
    connector_of(RackId(rack), Incarnation(1))
}

fn connector_of(
    rack: RackId,
    incarnation: Incarnation,
) -> (Connector<TestTransport>, Receiver<Outcome<TestTransport>>) {
    let (outcomes, reports) = channel();
    let key = Some(FabricKey::new([7; 32])).into();
    let identity = Identity { rack, incarnation, key };
    let connector = Connector {
        transport: TestTransport { identity, outcomes },
        listener: pair().0,
        control: Arc::new(pair().0),
        commands: channel().1,
        connections: Vec::new(),
        refusals: Refusals::default(),
        watched: Vec::new(),
        next_watch: 0,
        accept_again_at: None,
    };
    (connector, reports)
}

impl Connector<TestTransport> {
    /// What a round of `run` does for the connections, as if all sockets were ready.
    fn round(&mut self) {
        let connections = std::mem::take(&mut self.connections);
        self.go_on(connections.into_iter().map(|one| (PollFlags::IN, one)).collect());
        self.look_at_watched(&vec![PollFlags::IN; self.watched.len()]);
        self.let_succeed();
        self.join();
    }
}

const ENDPOINT: EndpointId = EndpointId(4);

/// An initiator and an acceptor whose connection exists.
fn both() -> [(Connector<TestTransport>, Receiver<Outcome<TestTransport>>); 2] {
    let (mut one, mut two) = (connector(1), connector(2));
    meet(&mut one.0, &mut two.0);
    [one, two]
}

/// Begins a connection.
fn meet(one: &mut Connector<TestTransport>, two: &mut Connector<TestTransport>) {
    let (socket, peer) = pair();
    one.connect(ENDPOINT, &"there").unwrap();
    one.connections[0].stream = Stream::new(socket);
    let accepted = Connection::accept(&two.transport, peer, None);
    two.connections.push(accepted.map_err(|(_, error)| error).unwrap());
}

#[test]
fn a_handshake_with_a_probe_makes_an_endpoint_that_is_watched() {
    let [(mut one, first), (mut two, second)] = both();
    for _ in 0..4 {
        one.round();
        two.round();
    }
    let Ok(Outcome::Ready { endpoint, watch: 0, link }) = first.try_recv() else { panic!() };
    assert_eq!((endpoint, &link[..]), (Some(ENDPOINT), &b"given"[..]));
    let Ok(Outcome::Ready { endpoint, watch, link }) = second.try_recv() else { panic!() };
    assert_eq!((endpoint, &link[..]), (None, &b"asked"[..]));
    assert!(one.connections.is_empty() && two.connections.is_empty());
    let goodbye = TestTransport::PROTOCOL.encode(&crate::handshake::Packet::Goodbye);
    rustix::io::write(one.watched[0].socket().unwrap(), &goodbye).unwrap();
    two.round();
    let Ok(Outcome::Gone { watch: gone, said_goodbye: true }) = second.try_recv() else { panic!() };
    assert_eq!(gone, watch);
    assert!(two.watched[0].socket().is_none(), "its end would be reported again and again");
    assert!(two.forget(watch), "the goodbye is remembered");
    assert!(!one.forget(0));
}

#[test]
fn what_is_no_goodbye_on_the_socket_of_an_endpoint_breaks_it() {
    let [(mut one, _first), (mut two, second)] = both();
    for _ in 0..4 {
        one.round();
        two.round();
    }
    let Ok(Outcome::Ready { watch, .. }) = second.try_recv() else { panic!() };
    rustix::io::write(one.watched[0].socket().unwrap(), b"psst").unwrap();
    two.round();
    assert!(matches!(second.try_recv(), Ok(Outcome::Broken { watch: broken }) if broken == watch));
}

/// Observed in the lab on a busy host: a handshake whose steps took longer in total than one step
/// may take failed repeatedly. An unauthenticated peer has no such steps.
#[test]
fn each_step_has_its_own_time_once_the_peer_has_proved_itself() {
    let [(mut one, _first), (mut two, _second)] = both();
    let begun = two.connections[0].give_up_at();
    one.round();
    two.round();
    assert_eq!(two.connections[0].give_up_at(), begun, "a hello gives no time");
    one.round();
    two.round();
    assert!(two.connections[0].is_proven() && two.connections[0].give_up_at() > begun);
}

/// Observed in the lab on a busy host: the acceptor timed out before the initiator had checked its
/// own deadline, and the error did not mention that time was over.
#[test]
fn a_peer_that_gave_up_when_the_time_was_over_is_not_one_that_refused() {
    let error = |is_late: bool| {
        let [(mut one, first), (two, _second)] = both();
        one.round();
        drop(two);
        if is_late {
            one.connections[0].time_is_over();
        }
        one.round();
        let Ok(Outcome::Failed { endpoint: ENDPOINT, error }) = first.try_recv() else { panic!() };
        error
    };
    assert!(matches!(error(false), FabricError::Unreachable { .. }));
    assert!(matches!(error(true), FabricError::Silent { timeout_ms: HANDSHAKE_MS, .. }));
}

#[test]
fn a_packet_that_comes_byte_by_byte_is_read_and_no_byte_beyond_it() {
    let (mut two, _reports) = connector(2);
    let (peer, socket) = pair();
    let mut stream = Stream::new(socket);
    let hello = crate::handshake::Handshake::new(
        TestTransport::PROTOCOL,
        &two.transport.identity,
        Role::Initiator,
    );
    let hello = hello.unwrap().hello().to_vec();
    for byte in &hello {
        let received = stream.receive(TestTransport::PROTOCOL).unwrap();
        assert!(matches!(received, stream::Received::Nothing));
        rustix::io::write(&peer, &[*byte]).unwrap();
    }
    rustix::io::write(&peer, b"more").unwrap();
    let received = stream.receive(TestTransport::PROTOCOL).unwrap();
    assert!(matches!(received, stream::Received::Packet(packet) if packet == hello));
    let mut rest = [0; START_BYTES];
    assert_eq!(rustix::io::read(&stream.socket, &mut rest), Ok(4));
    assert!(!two.give_up(ENDPOINT));
}

#[test]
fn an_unauthenticated_peer_makes_room_before_one_that_has_proved_itself() {
    let [(mut one, _first), (mut two, _second)] = both();
    one.round();
    two.round();
    one.round();
    two.round();
    for _ in 0..2 {
        let silent = Connection::accept(&two.transport, pair().0, None);
        two.connections.push(silent.map_err(|(_, error)| error).unwrap());
    }
    for left in [2, 1, 0] {
        assert!(left == 0 || two.connections[0].is_proven());
        two.make_room();
        assert_eq!(two.connections.len(), left);
    }
}

#[test]
fn a_later_incarnation_gets_no_offer_before_the_earlier_ones_endpoint_is_forgotten() {
    let [(mut earlier, _first), (mut two, second)] = both();
    for _ in 0..4 {
        earlier.round();
        two.round();
    }
    let Ok(Outcome::Ready { watch, .. }) = second.try_recv() else { panic!() };
    let (mut later, third) = connector_of(RackId(1), Incarnation(2));
    meet(&mut later, &mut two);
    for _ in 0..4 {
        later.round();
        two.round();
    }
    let Ok(Outcome::Superseded { watch: superseded }) = second.try_recv() else { panic!() };
    assert_eq!(superseded, watch);
    assert!(second.try_recv().is_err(), "it is asked once");
    assert!(two.connections[0].is_succeeding() && third.try_recv().is_err());
    two.forget(watch);
    for _ in 0..4 {
        later.round();
        two.round();
    }
    assert!(matches!(third.try_recv(), Ok(Outcome::Ready { .. })));
    assert!(matches!(second.try_recv(), Ok(Outcome::Ready { watch: 1, .. })));
}

#[test]
fn an_endpoint_that_does_not_end_in_time_fails_the_handshake_of_the_later_incarnation() {
    let [(mut earlier, _first), (mut two, _second)] = both();
    for _ in 0..4 {
        earlier.round();
        two.round();
    }
    let (mut later, third) = connector_of(RackId(1), Incarnation(2));
    meet(&mut later, &mut two);
    for _ in 0..4 {
        later.round();
        two.round();
    }
    two.connections[0].time_is_over();
    two.round();
    assert!(two.connections.is_empty());
    later.round();
    assert!(matches!(third.try_recv(), Ok(Outcome::Failed { .. })));
}

#[test]
fn a_later_incarnation_ends_the_earlier_ones_handshake() {
    let [(mut earlier, first), (mut two, second)] = both();
    for _ in 0..2 {
        earlier.round();
        two.round();
    }
    assert!(two.connections[0].is_proven(), "it has this side's offer");
    let (mut later, third) = connector_of(RackId(1), Incarnation(2));
    meet(&mut later, &mut two);
    for _ in 0..4 {
        later.round();
        two.round();
    }
    assert!(matches!(third.try_recv(), Ok(Outcome::Ready { .. })));
    let Ok(Outcome::Ready { endpoint: None, .. }) = second.try_recv() else { panic!() };
    earlier.round();
    earlier.round();
    assert!(first.try_recv().is_ok_and(|outcome| matches!(outcome, Outcome::Failed { .. })));
    assert_eq!((two.connections.len(), two.watched.len()), (0, 1));
}
