//! Requests to a daemon that is about to be killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rackpool_client::{AccessError, AllocError, DaemonError, FreeError, GlobalAddr, Pool};

use crate::contents;
use crate::pool::{PAGE, TestPool};
use rackpool_testing::wait::{TIMEOUT, wait_until};

/// Request, rack of the client, and rack of the daemon that is killed meanwhile. Rack 1 is full:
/// its clients get objects from rack 0.
pub(super) const ERRANDS: [(&str, u16, u16); 22] = [
    ("refill", 0, 0),
    ("run", 0, 0),
    ("release", 0, 0),
    ("translate", 0, 0),
    ("fixed", 0, 0),
    ("extend", 0, 0),
    ("free-head", 0, 0),
    ("open", 0, 0),
    ("close", 0, 0),
    ("reclaim", 0, 0),
    ("far refill", 1, 1),
    ("far release", 1, 1),
    ("far translate", 1, 1),
    ("far read", 1, 1),
    ("far write", 1, 1),
    ("far add", 1, 1),
    ("far close", 1, 1),
    ("far reclaim", 1, 1),
    ("served refill", 1, 0),
    ("served release", 1, 0),
    ("served add", 1, 0),
    ("served reclaim", 1, 0),
];

const BYTES: u64 = LEN as u64;
/// Bytes of an object, as a buffer length.
const LEN: usize = 64;
const RUN: u64 = 5 * PAGE;

/// What a client holds after its request.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Objects, with the tags of the patterns that each may hold.
    pub(super) objects: Vec<(GlobalAddr, Vec<u64>)>,
    /// A counter that may have been raised by one.
    pub(super) counter: Option<GlobalAddr>,
    /// The client, unless it has closed.
    pub(super) pool: Option<Pool>,
}

/// A client that makes its request when told to.
#[derive(Debug)]
pub(super) struct Client {
    go: Sender<()>,
    is_done: Arc<AtomicBool>,
    thread: JoinHandle<Done>,
}

impl Client {
    /// Prepares a request.
    pub(super) fn prepare(pool: &TestPool, name: &str, rack: u16) -> Self {
        let errand = name.rsplit(' ').next().unwrap_or(name).to_owned();
        let (ready, is_ready) = channel();
        let (go, told) = channel();
        let is_done = Arc::new(AtomicBool::new(false));
        let (own, options) = (pool.open(rack), pool.options(rack));
        let done = Arc::clone(&is_done);
        let thread = std::thread::spawn(move || {
            let (mut result, objects) = prepare(own, &errand);
            ready.send(()).expect("somebody waits");
            told.recv().expect("it is told to go");
            go_on(&errand, &mut result, &objects, options);
            done.store(true, Ordering::Release);
            result
        });
        is_ready.recv().expect("an errand that can be prepared");
        Self { go, is_done, thread }
    }

    pub(super) fn go(&self) {
        self.go.send(()).expect("a client that waits");
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Waits until the request is done.
    pub(super) fn done(self) -> Done {
        wait_until("the errand is done", TIMEOUT, || self.is_done() || self.thread.is_finished());
        self.thread.join().expect("an errand that went well")
    }
}

fn written(pool: &Pool, bytes: u64) -> GlobalAddr {
    let addr = pool.alloc(bytes).expect("room");
    let contents = contents::of(addr.raw(), usize::try_from(bytes).expect("a small object"));
    pool.write(addr, &contents).expect("an object in use");
    addr
}

/// What the client holds before its request, and the objects that the request concerns.
fn prepare(pool: Pool, errand: &str) -> (Done, Vec<GlobalAddr>) {
    pool.ping().expect("a daemon that serves");
    let mut done = Done::default();
    let object = match errand {
        "release" => Some(written(&pool, RUN)),
        // Allocated by another thread, so that neither this thread's cache nor its pages know the
        // object.
        "translate" => {
            std::thread::scope(|scope| scope.spawn(|| written(&pool, BYTES)).join()).ok()
        }
        "read" | "write" | "add" => Some(written(&pool, BYTES)),
        "extend" | "free-head" => {
            let head = pool.alloc_fixed(BYTES).expect("room");
            pool.write(head, &contents::of(head.raw(), LEN)).expect("an object in use");
            pool.alloc_extents(head, PAGE).expect("room");
            Some(head)
        }
        "close" => {
            for bytes in [BYTES, BYTES * 2, RUN] {
                pool.free(written(&pool, bytes)).expect("an object in use");
            }
            None
        }
        _ => None,
    };
    if errand == "add" {
        done.counter = object;
        pool.write(object.expect("a counter"), &[0; 8]).expect("an object in use");
    } else if !matches!(errand, "release" | "free-head") {
        done.objects.extend(object.map(|addr| (addr, vec![addr.raw()])));
    }
    done.pool = Some(pool);
    (done, object.into_iter().collect())
}

fn go_on(
    errand: &str,
    done: &mut Done,
    objects: &[GlobalAddr],
    options: rackpool_client::ClientOptions,
) {
    if errand == "close" {
        done.pool = None;
        return;
    }
    if errand == "open" {
        // Without a daemon opening fails.
        done.pool = Pool::open(options).ok();
        return;
    }
    let pool = done.pool.as_ref().expect("an open pool");
    let object = objects.first().copied().unwrap_or(GlobalAddr::NULL);
    match errand {
        "refill" | "run" => match pool.alloc(if errand == "run" { RUN } else { BYTES }) {
            Ok(addr) => done.objects.push((addr, Vec::new())),
            // The other rack is unavailable.
            Err(AllocError::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        },
        "release" => match pool.free(object) {
            Ok(()) => {}
            // While the object's home is unavailable its place can't be found; the object stays in
            // use.
            Err(FreeError::Access(error)) if is_away(&error) => {
                done.objects.push((object, vec![object.raw()]));
            }
            Err(error) => panic!("{error}"),
        },
        "fixed" => {
            let addr = pool.alloc_fixed(BYTES).expect("room in the own rack");
            done.objects.push((addr, Vec::new()));
        }
        "extend" => {
            let extents = pool.alloc_extents(object, RUN).expect("room in the own rack");
            assert_eq!(extents.iter().map(|extent| extent.bytes).sum::<u64>(), RUN);
            assert_eq!(pool.extents(object).expect("a head"), extents, "each of them once");
        }
        "free-head" => {
            pool.free(object).expect("an object in use");
            // The daemon frees the memory before it serves these.
            (0..2).for_each(|_| pool.ping().expect("a daemon that serves"));
        }
        "translate" | "read" => {
            let mut found = [0; LEN];
            match pool.read(object, &mut found) {
                Ok(()) => assert_eq!(contents::difference(object.raw(), &found), None),
                Err(error) => assert!(is_away(&error), "{error}"),
            }
        }
        "write" => {
            let new = contents::of(object.raw() ^ 1, LEN);
            match pool.write(object, &new) {
                Ok(()) => done.objects = vec![(object, vec![object.raw() ^ 1])],
                Err(error) => {
                    assert!(is_away(&error), "{error}");
                    done.objects = vec![(object, vec![object.raw(), object.raw() ^ 1])];
                }
            }
        }
        "add" => match pool.fetch_and_add(object, 1) {
            Ok(found) => assert_eq!(found, 0),
            Err(AccessError::Indeterminate(_)) => {}
            Err(error) => assert!(is_away(&error), "{error}"),
        },
        other => panic!("there is no errand '{other}'"),
    }
}

/// Returns true if a rack or its daemon was unavailable, which is allowed here.
pub(super) const fn is_away(error: &AccessError) -> bool {
    matches!(
        error,
        AccessError::RackUnavailable(_)
            | AccessError::Indeterminate(_)
            | AccessError::Daemon(DaemonError::MetadataUnreachable | DaemonError::Unavailable)
    )
}
