//! Two racks swap pages through a metadata server that is killed, fails and restarts.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rackpool_model::{Epoch, Incarnation, PageId, PageRange, RackId};
use rackpool_testing::wait::{TIMEOUT, wait_for};
use rackpool_wire::metadata::{LastMove, MetadataReply, MetadataRequest, PUSHED, Refusal, Tagged};
use rackpool_wire::swap::{FromServer, PageLife, RequestRefusal, SwapId, ToServer};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::{Connection, Server};

/// Pages 1 to 100 are born in rack 1, 101 to 200 in rack 2.
const PAGE: PageId = PageId(7);
const OFFERED: PageId = PageId(107);

/// A rack's daemon, as the metadata server sees it.
struct Rack {
    id: u16,
    incarnation: u64,
    connection: Connection,
}

impl Rack {
    fn join(server: &Server, id: u16, memory: u128, incarnation: u64) -> Self {
        let mut connection = server.connect();
        connection.register(id, memory, incarnation);
        Self { id, incarnation, connection }
    }

    fn say(&mut self, message: ToServer) {
        let (rack, incarnation) = (RackId(self.id), Incarnation(self.incarnation));
        let said = MetadataRequest::Swap { rack, incarnation, message };
        self.connection.send(said).unwrap();
    }

    fn hear(&mut self) -> FromServer {
        match self.connection.receive().unwrap() {
            Tagged { tag: PUSHED, message: MetadataReply::Swap { message, .. } } => message,
            other => panic!("{other:?}"),
        }
    }

    /// Requests a swap for `page`, and returns the granted swap.
    fn begin(&mut self, page: PageId, offered: PageId, home: u16) -> SwapId {
        let wanted = u64::from(page.0);
        self.say(ToServer::Request { page, offered, nonce: wanted });
        match self.hear() {
            FromServer::Granted { swap, nonce, home: told } => {
                assert_eq!((nonce, told), (wanted, RackId(home)));
                swap
            }
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, swap: SwapId, page: PageId, offered: PageId) {
        let life = |page| PageLife { page, epoch: Epoch::new(3) };
        self.say(ToServer::Commit { swap, page: life(page), offered: life(offered) });
    }

    fn outcome(&mut self, swap: SwapId, page: PageId) -> bool {
        self.say(ToServer::Outcome { swap, page });
        self.is_committed(swap)
    }

    fn is_committed(&mut self, wanted: SwapId) -> bool {
        match self.hear() {
            FromServer::Decision { swap, committed } if swap == wanted => committed,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the home of a page and the number of pages of its range; `None` if the page is lost.
    fn locate(&mut self, page: PageId) -> Option<(u16, u32)> {
        match self.connection.ask(MetadataRequest::Locate { page }) {
            MetadataReply::Located { pages, home } => {
                assert!(pages.contains(page));
                Some((home.0, pages.count))
            }
            MetadataReply::PageLost => None,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the home of [`PAGE`], the requester, and the server.
fn pool(directory: &Path) -> (Rack, Rack, Server) {
    let server = Server::start(directory, &[]);
    let racks = (Rack::join(&server, 1, 11, 1), Rack::join(&server, 2, 22, 1));
    (racks.0, racks.1, server)
}

#[test]
fn two_racks_swap_pages_and_everybody_learns_where_they_live() {
    let directory = tempfile::tempdir().unwrap();
    let (mut home, mut requester, _server) = pool(directory.path());
    assert_eq!(requester.locate(PAGE), Some((1, 100)));
    let swap = requester.begin(PAGE, OFFERED, 1);
    assert_eq!(requester.locate(PAGE), Some((1, 100)), "nothing has moved yet");
    requester.commit(swap, PAGE, OFFERED);
    assert!(requester.is_committed(swap) && home.is_committed(swap));
    assert_eq!(requester.locate(PAGE), Some((2, 1)));
    assert_eq!(home.locate(OFFERED), Some((1, 1)));
    assert_eq!(home.locate(PageId(PAGE.0 - 1)), Some((1, 6)));
    assert_eq!(home.locate(PageId(PAGE.0 + 1)), Some((1, 93)));

    let explained = requester.connection.ask(MetadataRequest::Explain { page: PAGE });
    let MetadataReply::Explained(entry) = explained else { panic!("{explained:?}") };
    assert_eq!((entry.born, entry.home), (RackId(1), Some(RackId(2))));
    assert_eq!(entry.moved, Some(LastMove { swap, epoch: Epoch::new(3) }));
    assert_eq!((entry.locked, entry.waiting), (None, vec![]));
    // The page does not belong to rack 1 any more, which can request it back.
    home.say(ToServer::Request { page: PageId(108), offered: PAGE, nonce: 1 });
    let reason = RequestRefusal::NotYours;
    assert_eq!(home.hear(), FromServer::Refused { nonce: 1, reason });
    home.begin(PAGE, OFFERED, 2);
}

#[test]
fn only_the_daemon_that_serves_a_rack_may_swap_its_pages() {
    let directory = tempfile::tempdir().unwrap();
    let (_home, mut old, server) = pool(directory.path());
    let swap = old.begin(PAGE, OFFERED, 1);
    let mut new = Rack::join(&server, 2, 22, 2);
    old.commit(swap, PAGE, OFFERED);
    let refused = old.connection.receive().unwrap();
    let superseded = Refusal::Superseded { rack: RackId(2), current: Incarnation(2) };
    assert_eq!(refused, Tagged { tag: PUSHED, message: MetadataReply::Refused(superseded) });
    // As if sent by a daemon of another incarnation.
    old.incarnation = 2;
    old.commit(swap, PAGE, OFFERED);
    let refused = old.connection.receive().unwrap().message;
    assert_eq!(refused, MetadataReply::Refused(Refusal::NotMember(RackId(2))));
    assert_eq!(new.locate(PAGE), Some((1, 100)));
    assert!(!new.outcome(swap, PAGE));
}

#[test]
fn a_swap_with_a_silent_rack_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (home, mut requester, _server) = pool(directory.path());
    drop(home);
    requester.begin(PAGE, OFFERED, 1);
    let locked = wait_for("end of the swap", TIMEOUT, || {
        match requester.connection.ask(MetadataRequest::Explain { page: OFFERED }) {
            MetadataReply::Explained(entry) => entry.locked.is_none().then_some(entry),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!((locked.home, locked.moved), (Some(RackId(2)), None));
}

#[test]
fn a_swap_that_was_not_committed_before_a_kill_never_is() {
    let directory = tempfile::tempdir().unwrap();
    let (_home, mut requester, server) = pool(directory.path());
    let swap = requester.begin(PAGE, OFFERED, 1);
    server.kill();
    let (mut home, mut requester, _server) = pool(directory.path());
    requester.commit(swap, PAGE, OFFERED);
    assert!(!requester.is_committed(swap));
    assert!(!home.outcome(swap, OFFERED) && !requester.outcome(swap, PAGE));
    assert_eq!(requester.locate(PAGE), Some((1, 100)));
    assert!(requester.begin(PAGE, OFFERED, 1) > swap, "numbers of swaps grow over restarts");
}

#[test]
fn a_swap_that_was_committed_before_a_kill_is_for_both() {
    let directory = tempfile::tempdir().unwrap();
    let (_home, mut requester, server) = pool(directory.path());
    let swap = requester.begin(PAGE, OFFERED, 1);
    requester.commit(swap, PAGE, OFFERED);
    assert!(requester.is_committed(swap));
    server.kill();
    let (mut home, mut requester, _server) = pool(directory.path());
    assert!(home.outcome(swap, OFFERED) && requester.outcome(swap, PAGE));
    requester.commit(swap, PAGE, OFFERED);
    assert!(requester.is_committed(swap), "asked again");
    assert_eq!((requester.locate(PAGE), home.locate(OFFERED)), (Some((2, 1)), Some((1, 1))));
}

#[test]
fn both_racks_hear_the_same_of_a_swap_whenever_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..16 {
        let (_home, mut requester, server) = pool(directory.path());
        let (page, offered) = (PageId(PAGE.0 + round), PageId(OFFERED.0 + round));
        let swap = requester.begin(page, offered, 1);
        requester.commit(swap, page, offered);
        // At some time before, during or after the write, which takes a millisecond.
        std::thread::sleep(Duration::from_micros(u64::from(round / 2) * 50));
        server.kill();
        let (mut home, mut requester, _server) = pool(directory.path());
        let committed = requester.outcome(swap, page);
        assert_eq!(home.outcome(swap, offered), committed);
        let homes = (requester.locate(page).unwrap().0, requester.locate(offered).unwrap().0);
        assert_eq!(homes, if committed { (2, 1) } else { (1, 2) });
    }
}

#[test]
fn other_memory_loses_the_pages_that_lived_there_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let (mut home, mut requester, server) = pool(directory.path());
    let swap = requester.begin(PAGE, OFFERED, 1);
    requester.commit(swap, PAGE, OFFERED);
    assert!(requester.is_committed(swap) && home.is_committed(swap));
    let leave = MetadataRequest::Leave { rack: RackId(1), incarnation: Incarnation(1) };
    assert_eq!(home.connection.ask(leave), MetadataReply::Left);
    let fresh = Rack::join(&server, 1, 12, 2);
    let check = |rack: &mut Rack| {
        assert_eq!(rack.locate(PAGE), Some((2, 1)), "born in the memory that is gone");
        assert_eq!((rack.locate(OFFERED), rack.locate(PageId(PAGE.0 + 1))), (None, None));
        assert_eq!(rack.locate(PageId(OFFERED.0 + 1)), Some((2, 93)));
        assert_eq!(rack.connection.status().lost_pages, 100);
    };
    check(&mut requester);
    server.wait_for_log("100 pages of its earlier memory are lost");
    drop(fresh);
    server.kill();
    let server = Server::start(directory.path(), &[]);
    check(&mut Rack::join(&server, 2, 22, 1));
    // The memory returns, with the pages in it.
    let leave = MetadataRequest::Leave { rack: RackId(1), incarnation: Incarnation(2) };
    assert_eq!(server.connect().ask(leave), MetadataReply::Left);
    let mut back = Rack::join(&server, 1, 11, 3);
    assert_eq!(back.connection.register(1, 11, 3), PageRange { first: PageId(1), count: 100 });
    assert_eq!(back.locate(OFFERED), Some((1, 1)));
}

#[test]
fn after_a_failed_write_nothing_is_said_of_swaps_until_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    // A write past the file size limit then fails instead of killing the process.
    let server = Server::command(directory.path(), &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(server.get_program()).args(server.get_args()).env("RUST_LOG", "off");
    let server = Server::run(shell, directory.path());
    let mut home = Rack::join(&server, 1, 11, 1);
    let mut requester = Rack::join(&server, 2, 22, 1);
    let swap = requester.begin(PAGE, OFFERED, 1);
    let process = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    prlimit(Some(process), Resource::Fsize, Rlimit { current: Some(1), maximum: None }).unwrap();
    requester.commit(swap, PAGE, OFFERED);
    // The commit has failed when this is answered.
    let refused = requester.connection.ask(support::put("after", 1));
    assert!(matches!(refused, MetadataReply::Refused(Refusal::Store(_))), "{refused:?}");
    for rack in [&mut home, &mut requester] {
        rack.say(ToServer::Outcome { swap, page: PAGE });
        rack.say(ToServer::Request { page: PageId(9), offered: PageId(109), nonce: 5 });
        // This is the answer, so no message was pushed before it.
        assert_eq!(rack.locate(PAGE), Some((1, 100)));
    }
    server.kill();
    let (mut home, mut requester, _server) = pool(directory.path());
    let committed = requester.outcome(swap, PAGE);
    assert_eq!(home.outcome(swap, OFFERED), committed);
    assert_eq!(requester.locate(PAGE).unwrap().0, if committed { 2 } else { 1 });
}
