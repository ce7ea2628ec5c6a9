//! What must hold after a batch: what is in use is what somebody has, once; what was written is
//! there; nothing in the dead clients' files is torn; the daemons have found nothing odd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_kv::Table;

use super::batch::Killed;
use super::{ENTRY, RUN, Scene};
use crate::census;
use crate::contents;
use crate::program::step::TOMBSTONE;
use crate::program::store::number_of;
use crate::steps::plan::Remains;
use crate::wait::{PATIENCE, wait_until};

/// When `alloc` has the object that it returns: from some moment of it on, and never before. An
/// object that is nobody's for an instant in between would look like one in hand.
#[derive(Debug, Default)]
pub(super) struct Hands {
    /// Of each operation and rack the last moment without an object, and the first one with.
    seen: BTreeMap<(&'static str, u16), (usize, usize)>,
}

impl Hands {
    /// Of some killed clients so many had an object in hand; what is wrong with that.
    fn saw(&mut self, killed: &[&Killed], taken: usize, rack: u16) -> Option<String> {
        // Which of them had it can be told of all or none.
        if taken != 0 && taken != killed.len() {
            return None;
        }
        for Killed { operation, moment, .. } in killed {
            let Some(moment) = *moment else { continue };
            let (last, first) = self.seen.entry((operation, rack)).or_insert((0, usize::MAX));
            if taken == 0 {
                *last = moment.max(*last);
            } else {
                *first = moment.min(*first);
            }
            if last >= first {
                return Some(format!(
                    "{operation} from rack {rack}: after {last} steps it has no object, after \
                     {first} one is in use"
                ));
            }
        }
        None
    }
}

impl Scene {
    /// Waits until everything of the killed clients has been taken back and looks at everything;
    /// then frees what they had a right to leave.
    pub(super) fn check(&mut self, killed: &[Killed]) {
        let began = Instant::now();
        let held = self.hold_workers();
        self.wait_for_newcomers();
        self.slowest = self.slowest.max(began.elapsed());
        let story = || killed.iter().map(|k| format!("{k:?}\n")).collect::<String>();
        for client in killed {
            let faults = client.body.as_ref().map(super::super::autopsy::Body::faults);
            let faults = faults.unwrap_or_default();
            assert!(faults.is_empty(), "{faults:?}: {client:?}");
        }
        self.check_tables(&story());
        self.destroy_tables();
        self.wait_for_requests_of_the_dead();
        self.wait_for_newcomers();
        let found = census::objects(&self.ground.pool);
        let known = self.before.objects.keys().chain(held.keys());
        let lost: Vec<_> = known.filter(|addr| !found.contains_key(addr)).collect();
        assert!(lost.is_empty(), "free although in use: {lost:?}\n{}", story());
        let news = found.iter().filter(|(addr, _)| {
            !self.before.objects.contains_key(addr) && !held.contains_key(addr)
        });
        let mut left: BTreeMap<GlobalAddr, u64> = news.map(|(a, bytes)| (*a, *bytes)).collect();
        let own = self.ground.pool.open(0);
        let mut in_hand = 0;
        let mut wrong = Vec::new();
        for link in self.ground.slots.iter().flat_map(|slot| slot.links) {
            wrong.extend(take_linked(&own, link, &mut left));
        }
        // What was about to be freed may be somebody else's by now, who is killed as well.
        let (sure, doubtful): (Vec<_>, Vec<_>) =
            killed.iter().partition(|client| client.remains == Remains::Objects);
        for client in sure.into_iter().chain(doubtful) {
            take_objects(&own, client, &mut left, &mut wrong);
        }
        for (index, slot) in self.ground.slots.iter().enumerate() {
            let hands: Vec<_> =
                killed.iter().filter(|k| k.slot == index && k.remains == Remains::InHand).collect();
            let taken = take_hands(&own, slot.bytes, &hands, &mut left);
            wrong.extend(self.hands.saw(&hands, taken, slot.rack));
            in_hand += taken;
        }
        let runs: Vec<_> = killed.iter().filter(|k| k.remains == Remains::RunInHand).collect();
        in_hand += take_hands(&own, RUN, &runs, &mut left);
        assert!(left.is_empty(), "in use and nobody's: {left:?}\n{}", story());
        assert!(wrong.is_empty(), "{wrong:?}\n{}", story());
        own.close();
        self.in_hand += in_hand;
        self.check_figures();
        let odd = self.log.odd(&self.ground.pool);
        assert!(odd.is_empty(), "{odd:#?}\n{}", story());
        self.make_tables();
        self.release_workers();
    }

    /// What a killed client of rack 1 had asked rack 0 for may be carried out after its file has
    /// gone. Requests between two racks are carried out in their order: one that comes back was the
    /// last.
    fn wait_for_requests_of_the_dead(&self) {
        let own = self.ground.pool.open(1);
        let last = own.alloc(RUN).expect("room in rack 0");
        own.free(last).expect("an object in use");
        own.close();
    }

    fn wait_for_newcomers(&self) {
        let gone = || self.before.newcomers_are_gone(&self.ground.pool);
        wait_until("clients that have ended are gone", PATIENCE, gone);
    }

    /// Lets those who work on check what they have, and stops them: what they have.
    fn hold_workers(&mut self) -> BTreeMap<GlobalAddr, u64> {
        let mut held = BTreeMap::new();
        for worker in &mut self.workers {
            let said = worker.ask("hold");
            let objects = said.strip_prefix("held").expect("a client that works on");
            for object in objects.split_whitespace() {
                let (addr, bytes) = object.split_once(':').expect("an object");
                let bytes = bytes.parse().expect("a size");
                let before = held.insert(crate::client::parse_addr(addr), bytes);
                assert_eq!(before, None, "{addr} was handed out twice");
            }
        }
        held
    }

    fn release_workers(&mut self) {
        for worker in &mut self.workers {
            assert_eq!(worker.ask("go"), "ok", "a client that works on");
        }
    }

    /// The entries of all tables are whole, and nothing else of their size is in use.
    fn check_tables(&self, story: &str) {
        let own = Arc::new(self.ground.pool.open(0));
        let (mut entries, mut torn) = (0, 0);
        for slot in &self.ground.slots {
            let mut handle = Table::open(Arc::clone(&own), slot.table).expect("a table").handle();
            let count = |_: &[u8], value: &[u8]| {
                entries += 1;
                torn += usize::from(number_of(value).is_none());
            };
            handle.for_each(count).expect("a readable table");
        }
        let found = census::objects(&self.ground.pool);
        let found = found.values().filter(|bytes| **bytes == ENTRY).count();
        assert_eq!(torn, 0, "torn values: {story}");
        assert_eq!(found, entries, "objects of the size of entries, and entries: {story}");
    }

    /// The daemons' own figures say the same as their metadata.
    fn check_figures(&self) {
        self.wait_for_newcomers();
        let counted: u64 = census::objects(&self.ground.pool).values().sum();
        let figures = || self.ground.pool.allocated().iter().sum::<u64>() == counted;
        wait_until("figures say what is in use", PATIENCE, figures);
    }
}

/// Checks and frees what a client had before the operation.
fn take_objects(
    own: &Pool,
    killed: &Killed,
    left: &mut BTreeMap<GlobalAddr, u64>,
    wrong: &mut Vec<String>,
) {
    for addr in &killed.objects {
        let found = left.remove(addr);
        match (found, killed.remains) {
            (Some(bytes), Remains::Objects) => {
                wrong.extend(fault_of(own, *addr, bytes, killed.operation));
            }
            (None, Remains::Objects) => wrong.push(format!("{addr} is free: {killed:?}")),
            _ => {}
        }
        if found.is_some() {
            own.free(*addr).expect("an object in use");
        }
    }
}

/// What is wrong with the contents of an object that a killed client had.
fn fault_of(own: &Pool, addr: GlobalAddr, bytes: u64, operation: &str) -> Option<String> {
    let mut found = vec![0; usize::try_from(bytes).expect("a small object")];
    own.read(addr, &mut found).expect("an object in use");
    let tags: &[u64] =
        if operation == "write" { &[addr.raw(), addr.raw() ^ 1] } else { &[addr.raw()] };
    let mut number = 0;
    if operation == "add" {
        // Instead of the first bytes of the contents there is a number.
        number = found.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        found[..8].copy_from_slice(&contents::of(addr.raw(), 8));
    }
    // Byte by byte: an interrupted copy may have ended anywhere.
    let all: Vec<Vec<u8>> = tags.iter().map(|tag| contents::of(*tag, found.len())).collect();
    let differs = (0..found.len()).find(|at| all.iter().all(|of| of[*at] != found[*at]));
    (number > 1 || differs.is_some())
        .then(|| format!("{addr} holds {number}, and others than was written at {differs:?}"))
}

/// Frees what a link points to, and clears it.
fn take_linked(
    own: &Pool,
    link: GlobalAddr,
    left: &mut BTreeMap<GlobalAddr, u64>,
) -> Option<String> {
    let mut word = [0; 8];
    own.read(link, &mut word).expect("an object in use");
    let word = u64::from_le_bytes(word);
    own.write(link, &[0; 8]).expect("an object in use");
    if word == 0 || word & TOMBSTONE != 0 {
        return None;
    }
    let addr = GlobalAddr::from_raw(word);
    if left.remove(&addr).is_none() {
        return Some(format!("{addr} is free although linked"));
    }
    own.free(addr).expect("an object in use");
    None
}

/// Frees objects of one size that `alloc` had returned when their clients were killed, as many as
/// there can be; returns how many there were.
fn take_hands(
    own: &Pool,
    bytes: u64,
    hands: &[&Killed],
    left: &mut BTreeMap<GlobalAddr, u64>,
) -> usize {
    let of_size = left.iter().filter(|(_, found)| **found == bytes);
    let taken: Vec<GlobalAddr> = of_size.map(|(addr, _)| *addr).take(hands.len()).collect();
    for addr in &taken {
        left.remove(addr);
        own.free(*addr).expect("an object in use");
    }
    taken.len()
}
