//! Models of lock words and claims: two clients and the daemon that takes a word over. Run with
//! `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_model::{ClaimId, ClientId, LockClaim, LockMode, LockWord, PageId};
use rackpool_shm::line_cache::CopyingCell;
use rackpool_shm::lock_words::{ClaimCell, LockCell};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::{Barrier, heavy};

/// A lock word, the claims of two clients, and bytes that the lock protects.
struct Rack {
    word: LockCell,
    claims: [ClaimCell; 2],
    bytes: AtomicU64,
}

fn id(client: usize) -> ClaimId {
    let client = ClientId(u32::try_from(client).expect("0 or 1"));
    ClaimId { client, thread: 0, index: 0 }
}

impl Rack {
    fn new() -> Arc<Self> {
        let claims = [ClaimCell::new(), ClaimCell::new()];
        Arc::new(Self { word: LockCell::new(), claims, bytes: AtomicU64::new(0) })
    }

    /// Takes the lock without the daemon and does `work` under it. Returns whether the daemon must
    /// be asked instead, or be told of the unlock.
    fn lock(&self, client: usize, mode: LockMode, work: impl FnOnce(&AtomicU64)) -> bool {
        let claim = LockClaim::of_lines(PageId(1), 0, 1, mode).expect("one line");
        self.claims[client].publish(claim);
        if !self.word.take(id(client), mode, Barrier::Full) {
            return true;
        }
        work(&self.bytes);
        self.claims[client].clear();
        !self.word.release(id(client), mode, Barrier::Full)
    }

    /// Makes the word managed and returns the claims that may be held.
    fn manage(&self) -> Vec<LockClaim> {
        let found = self.word.manage();
        if let Some(named) = found.claim() {
            let claim = self.claims[named.client.0 as usize].load();
            return claim
                .into_iter()
                .filter(|c| c.mode() == LockMode::Write || found.is_shared())
                .collect();
        }
        if !found.is_shared() {
            return Vec::new();
        }
        heavy();
        let all = self.claims.iter().filter_map(ClaimCell::load);
        all.filter(|claim| claim.mode() == LockMode::Read).collect()
    }
}

/// Adds 1 in two steps, so that two writers at once lose one of the additions.
fn add(bytes: &AtomicU64) {
    let before = bytes.load(Ordering::Relaxed);
    bytes.store(before + 1, Ordering::Relaxed);
}

#[test]
fn two_writers_exclude_each_other_and_see_each_others_writes() {
    loom::model(|| {
        let rack = Rack::new();
        let other = {
            let rack = rack.clone();
            loom::thread::spawn(move || !rack.lock(0, LockMode::Write, add))
        };
        let here = !rack.lock(1, LockMode::Write, add);
        let there = other.join().expect("the client does not panic");
        let wrote = u64::from(here) + u64::from(there);
        assert!(wrote >= 1, "one of them finds the lock free");
        assert_eq!(rack.bytes.load(Ordering::Relaxed), wrote);
        assert_eq!(rack.word.load(), LockWord::FREE);
    });
}

/// The daemon finds no claim in a word that it has taken over: then it may grant the lock, and sees
/// everything that an earlier writer has written.
#[test]
fn the_daemon_finds_a_writer_or_its_writes() {
    loom::model(|| {
        let rack = Rack::new();
        let client = {
            let rack = rack.clone();
            loom::thread::spawn(move || {
                let mut wrote = false;
                let tells = rack.lock(0, LockMode::Write, |bytes| {
                    add(bytes);
                    wrote = true;
                });
                (wrote, tells)
            })
        };
        let is_held = !rack.manage().is_empty();
        let before = rack.bytes.load(Ordering::Relaxed);
        if !is_held {
            add(&rack.bytes);
        }
        let (wrote, tells) = client.join().expect("the client does not panic");
        assert!(!is_held || !wrote || tells, "an unlock that the daemon waits for is told");
        if !is_held {
            assert_eq!(before, u64::from(wrote), "the daemon has granted a held lock");
        }
        assert!(rack.word.load().is_managed(), "only the daemon changes a managed word");
    });
}

/// Readers that hold the lock are found, or tell the daemon nothing because they have released it.
#[test]
fn the_daemon_finds_every_reader() {
    loom::model(|| {
        let rack = Rack::new();
        let reads = Arc::new(AtomicU64::new(0));
        let clients = [0, 1].map(|client| {
            let (rack, reads) = (rack.clone(), reads.clone());
            loom::thread::spawn(move || {
                rack.lock(client, LockMode::Read, |bytes| {
                    let first = bytes.load(Ordering::Relaxed);
                    let second = bytes.load(Ordering::Relaxed);
                    assert_eq!(first, second, "a writer was let in under a reader");
                    reads.fetch_add(1, Ordering::Relaxed);
                })
            })
        });
        if rack.manage().is_empty() {
            rack.bytes.store(1, Ordering::Relaxed);
        }
        for client in clients {
            client.join().expect("the client does not panic");
        }
    });
}

/// A lock is lost neither by readers nor by writers: after both the word is free, or shared with no
/// claim.
#[test]
fn a_reader_and_a_writer_leave_no_claim() {
    loom::model(|| {
        let rack = Rack::new();
        let reader = {
            let rack = rack.clone();
            loom::thread::spawn(move || rack.lock(0, LockMode::Read, |_| ()))
        };
        let refused = rack.lock(1, LockMode::Write, add);
        let reader_refused = reader.join().expect("the client does not panic");
        assert!(!(refused && reader_refused), "one of them finds the lock free");
        assert_eq!(rack.word.load(), LockWord::FREE);
    });
}

#[test]
fn what_a_holder_has_written_is_seen_before_its_lost_lock_passes_on() {
    loom::model(|| {
        let copying = Arc::new(CopyingCell::new());
        let lost = Arc::new(AtomicU64::new(0));
        let bytes = Arc::new(AtomicU64::new(0));
        let holder = {
            let (copying, lost, bytes) = (copying.clone(), lost.clone(), bytes.clone());
            loom::thread::spawn(move || {
                copying.begin(0, Barrier::Full);
                let is_held = lost.load(Ordering::Acquire) == 0;
                if is_held {
                    bytes.store(1, Ordering::Relaxed);
                }
                copying.end();
                is_held
            })
        };
        lost.store(1, Ordering::Release);
        heavy();
        // The daemon waits while the holder copies.
        let taken = copying.claim().is_none().then(|| bytes.load(Ordering::Relaxed));
        let has_written = holder.join().expect("the holder does not panic");
        if let Some(taken) = taken {
            assert_eq!(taken, u64::from(has_written), "accepted and not taken, or written later");
        }
    });
}
