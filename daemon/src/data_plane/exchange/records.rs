//! The records of exchanges in the rack's metadata. A daemon may be killed between any two stores.

use rackpool_model::{GlobalAddr, MemoryId};
use rackpool_proto::exchange::{
    AskedRecord, AskedState, BATCH, ExchangeKind, PeerRecord, ServedRecord, ServedState,
};
use rackpool_shm::metadata::{PEER_BATCH, PeerLog, PeerRecord as PeerCells};
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

const _: () = assert!(BATCH == PEER_BATCH);

/// The kinds of exchanges.
const ALLOCATE: u64 = 1;
const FREE: u64 = 2;

/// The states of the requester's record.
const IDLE: u64 = 0;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
const MOVED: u64 = 3;
const OWNED: u64 = 4;

/// The states of the server's record.
const WRITING: u64 = 1;
const DOING: u64 = 2;
const DONE: u64 = 3;

/// Marks an object in the server's record that was not freed because its page had moved. Objects
/// begin at even addresses.
const MARK: u64 = 1;

const fn kind(kind: ExchangeKind) -> u64 {
    match kind {
        ExchangeKind::Allocate => ALLOCATE,
        ExchangeKind::Free => FREE,
    }
}

fn store(cell: &AtomicU64, value: u64) {
    cell.store(value, Ordering::Relaxed);
}

fn store_addrs(log: &PeerLog, addrs: impl Iterator<Item = u64>) {
    let mut count = 0;
    for (cell, addr) in log.addrs.iter().zip(addrs) {
        store(cell, addr);
        count += 1;
    }
    log.count.store(count, Ordering::Release);
}

/// Stores the requester's record. Objects that stay in the record keep their order, so that each of
/// them is in one of the cells throughout.
pub(super) fn store_asked(log: &PeerLog, record: &AskedRecord) {
    let state = match record.state {
        AskedState::Idle => IDLE,
        AskedState::Owned => OWNED,
        AskedState::Sent => SENT,
        AskedState::Received => RECEIVED,
        AskedState::Moved => MOVED,
    };
    if record.state != AskedState::Idle {
        store(&log.kind, kind(record.kind));
        store(&log.bytes, record.bytes);
        store_addrs(log, record.addrs.iter().map(|addr| addr.raw()));
        if record.kind == ExchangeKind::Allocate && record.state == AskedState::Sent {
            log.count.store(record.count, Ordering::Release);
        }
        log.sequence.store(record.sequence, Ordering::Release);
    }
    log.state.store(state, Ordering::Release);
}

/// Stores the server's record.
#[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
pub(super) fn store_served(log: &PeerLog, record: &ServedRecord) {
    let state = match record.state {
        ServedState::Writing => WRITING,
        ServedState::Doing => DOING,
        ServedState::Done => DONE,
    };
    if record.state == ServedState::Writing {
        log.state.store(state, Ordering::Release);
        // Orders the fields after the store of `WRITING`.
        return fence(Ordering::SeqCst);
    }
    store(&log.memory[0], record.memory.0 as u64);
    store(&log.memory[1], (record.memory.0 >> 64) as u64);
    store(&log.sequence, record.sequence);
    store(&log.kind, kind(record.kind));
    let moved = record.moved.iter().map(|addr| addr.raw() | MARK);
    store_addrs(log, record.addrs.iter().map(|addr| addr.raw()).chain(moved));
    log.state.store(state, Ordering::Release);
}

/// Loads both records of a rack. A word of no meaning counts as an unused record.
pub(super) fn load(cells: &PeerCells) -> PeerRecord {
    let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    let kind = |log: &PeerLog| match load(&log.kind) {
        ALLOCATE => ExchangeKind::Allocate,
        _ => ExchangeKind::Free,
    };
    let addrs = |log: &PeerLog| -> Vec<u64> {
        let count = usize::try_from(log.count.load(Ordering::Acquire)).unwrap_or(BATCH);
        log.addrs.iter().take(count).map(load).collect()
    };
    let PeerCells { asked, served } = cells;
    let state = match asked.state.load(Ordering::Acquire) {
        OWNED => AskedState::Owned,
        SENT => AskedState::Sent,
        RECEIVED => AskedState::Received,
        MOVED => AskedState::Moved,
        _ => AskedState::Idle,
    };
    // Before the answer to an allocation the record has no objects, and its count says how many
    // were asked for.
    let has_none = state == AskedState::Sent && kind(asked) == ExchangeKind::Allocate;
    let held = if has_none { Vec::new() } else { addrs(asked) };
    let asked = AskedRecord {
        state,
        sequence: load(&asked.sequence),
        kind: kind(asked),
        bytes: load(&asked.bytes),
        count: load(&asked.count).min(BATCH as u64),
        addrs: held.into_iter().map(GlobalAddr::from_raw).collect(),
    };
    let state = match served.state.load(Ordering::Acquire) {
        WRITING => ServedState::Writing,
        DOING => ServedState::Doing,
        _ => ServedState::Done,
    };
    let [low, high] = [load(&served.memory[0]), load(&served.memory[1])];
    let (moved, held): (Vec<u64>, Vec<u64>) =
        addrs(served).into_iter().partition(|addr| addr & MARK != 0);
    let served = ServedRecord {
        state,
        memory: MemoryId(u128::from(low) | u128::from(high) << 64),
        sequence: load(&served.sequence),
        kind: kind(served),
        addrs: held.into_iter().map(GlobalAddr::from_raw).collect(),
        moved: moved.into_iter().map(|addr| GlobalAddr::from_raw(addr & !MARK)).collect(),
    };
    PeerRecord { asked, served }
}
