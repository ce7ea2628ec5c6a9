//! Tests of the link with a metadata server whose store does not commit, or not yet.

use std::sync::mpsc;

use rackpool_model::{GlobalAddr, Incarnation, MemoryId, PageId, RackId};
use rackpool_wire::{FrameReader, encode};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;

/// The number of unanswered requests at which the metadata server stops reading a connection.
const UNANSWERED: usize = 32;
/// Timeout of every wait in the test.
const LONG: Duration = Duration::from_secs(20);
/// Longer than the test, so that no lease expires.
const LEASE: Duration = Duration::from_secs(600);
const POSITION: StorePosition = StorePosition { store: 1, boot: 1, server: 1, commit: 1 };
const PAGES: PageRange = PageRange { first: PageId(1), count: 16 };

/// What the server has received.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    beats: u64,
    /// Changes that wait for the store: now, and the maximum so far.
    held: usize,
    most_held: usize,
}

/// Answers one connection as the metadata server does. Changes are answered while `writes` is true.
async fn serve(
    listener: TcpListener,
    seen: watch::Sender<Seen>,
    mut writes: watch::Receiver<bool>,
) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut frames: FrameReader = FrameReader::new();
    let mut held = Vec::new();
    loop {
        let is_written = *writes.borrow_and_update();
        let mut answers = Vec::new();
        if is_written {
            let changed = MetadataReply::Root { addr: None, changed: true };
            answers.extend(held.drain(..).map(|tag| Tagged { tag, message: changed.clone() }));
        }
        while held.len() < UNANSWERED
            && let Some(Tagged { tag, message }) = frames.next().unwrap()
        {
            let message = match message {
                MetadataRequest::Register(_) => MetadataReply::Registered {
                    pages: PAGES,
                    lease_ms: u64::try_from(LEASE.as_millis()).unwrap(),
                    position: POSITION,
                    fabric_key: None,
                },
                MetadataRequest::Heartbeat { .. } => {
                    seen.send_modify(|seen| seen.beats += 1);
                    MetadataReply::Renewed { position: POSITION, version: 1, members: Vec::new() }
                }
                MetadataRequest::Locate { .. } => {
                    MetadataReply::Located { pages: PAGES, home: RackId(1) }
                }
                _ if is_written => MetadataReply::Root { addr: None, changed: true },
                _ => {
                    held.push(tag);
                    continue;
                }
            };
            answers.push(Tagged { tag, message });
        }
        seen.send_modify(|seen| {
            seen.held = held.len();
            seen.most_held = seen.most_held.max(held.len());
        });
        for answer in answers {
            stream.write_all(&encode(&answer).unwrap()).await.unwrap();
        }
        let mut bytes = [0; 4096];
        tokio::select! {
            read = stream.read(&mut bytes), if held.len() < UNANSWERED => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => frames.extend(&bytes[..count]),
            },
            changed = writes.changed() => changed.unwrap(),
        }
    }
}

fn announcement() -> RackAnnouncement {
    RackAnnouncement {
        rack: RackId(0),
        memory: MemoryId(7),
        incarnation: Incarnation(1),
        frames: PAGES.count,
        page_bytes: 4096,
        seen: None,
        control_path: String::new(),
        fabric_address: String::new(),
    }
}

fn put(name: usize) -> MetadataRequest {
    let new = Some(GlobalAddr::from_raw(4096));
    MetadataRequest::PutRoot { name: name.to_string(), expected: None, new }
}

/// Repeats the request until an answer comes: on a busy host an answer may come too late.
async fn ask(requester: &Requester, request: &MetadataRequest) -> MetadataReply {
    let asking = async {
        loop {
            if let Some(reply) = requester.ask(request.clone()).await {
                return reply;
            }
        }
    };
    tokio::time::timeout(LONG, asking).await.expect("an answer")
}

async fn wait(seen: &mut watch::Receiver<Seen>, is_so: impl FnMut(&Seen) -> bool) -> Seen {
    let waited = tokio::time::timeout(LONG, seen.wait_for(is_so)).await;
    *waited.expect("it comes").expect("the server is there")
}

#[tokio::test]
async fn heartbeats_and_look_ups_do_not_wait_for_the_writes_that_clients_wait_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MetadataConnector::new(listener.local_addr().unwrap().to_string(), None);
    let (writes, is_written) = watch::channel(false);
    let (seeing, mut seen) = watch::channel(Seen::default());
    tokio::spawn(serve(listener, seeing, is_written));
    let (metrics, keys) = (Arc::default(), Keyring::awaited());
    let (link, requester) =
        MetadataLink::new(server, announcement(), metrics, Some(PAGES), keys, LEASE);
    let (commands, _received) = mpsc::channel();
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    tokio::spawn(link.keep(Arc::new(Waker::new(commands, wake))));
    wait(&mut seen, |seen| seen.beats > 0).await;

    // More clients at once than the server leaves requests unanswered.
    for client in 0..UNANSWERED + 8 {
        let requester = requester.clone();
        tokio::spawn(async move { requester.ask(put(client)).await });
    }
    let beats = wait(&mut seen, |seen| seen.held >= CHANGES).await.beats;
    let locate = MetadataRequest::Locate { page: PageId(3) };
    assert!(matches!(ask(&requester, &locate).await, MetadataReply::Located { .. }));
    requester.hurry();
    let now = wait(&mut seen, |seen| seen.beats > beats).await;
    assert_eq!((now.held, now.most_held), (CHANGES, CHANGES));

    writes.send(true).unwrap();
    let changed = ask(&requester, &put(0)).await;
    assert_eq!(changed, MetadataReply::Root { addr: None, changed: true });
}
