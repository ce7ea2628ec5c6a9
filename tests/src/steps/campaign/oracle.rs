//! The checks after a batch: every object in use has exactly one owner; written bytes are present;
//! the dead clients' files contain nothing torn; the daemons have logged nothing unexpected.
//!
//! Each violation is a finding. `tests/oracle.rs` plants one of each kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, GlobalAddr, Pool};
use rackpool_kv::Table;
use rackpool_testing::wait::try_wait_until;

use super::account::{Account, doubtful};
use super::batch::Killed;
use super::finding::Finding;
use super::{ENTRY, RUN, Scene};
use crate::census;
use crate::contents;
use crate::program::step::TOMBSTONE;
use crate::program::store::number_of;
use crate::steps::autopsy::Body;
use crate::steps::plan::Remains;

/// The most time until the locks of killed clients are passed on.
const LOCKED: Duration = Duration::from_secs(3);

impl Scene {
    /// Waits until everything that the killed clients held was reclaimed, checks the pool, then
    /// frees the objects that the kills may leave in use. Returns the findings.
    pub fn look(&mut self, killed: &[Killed]) -> Vec<Finding> {
        let began = Instant::now();
        let held = self.hold_workers();
        let mut findings: Vec<_> = self.wait_for_newcomers().into_iter().collect();
        self.slowest = self.slowest.max(began.elapsed());
        self.followed += killed.iter().filter(|client| client.is_followed).count();
        for client in killed {
            findings.extend(client.findings.iter().cloned());
            let faults = client.body.as_ref().map(Body::faults).unwrap_or_default();
            findings.extend(faults.iter().map(|f| Finding::Body(format!("{f}: {client:?}"))));
        }
        findings.extend(self.check_tables());
        findings.extend(self.destroy_tables());
        findings.extend(self.check_stores(killed));
        self.wait_for_requests_of_the_dead();
        findings.extend(self.wait_for_newcomers());
        findings.extend(self.check_objects(killed, held));
        findings.extend(self.clear_stores());
        findings.extend(self.check_metrics());
        findings.extend(self.log.odd(&self.ground.pool).into_iter().map(Finding::Log));
        self.make_tables();
        self.release_workers();
        findings
    }

    /// Has each party name its objects, and checks their contents.
    fn check_objects(
        &mut self,
        killed: &[Killed],
        held: Vec<(GlobalAddr, String)>,
    ) -> Vec<Finding> {
        let mut account = Account::of(census::objects(&self.ground.pool));
        for addr in self.before.objects.keys() {
            account.name(*addr, "the scene");
        }
        for (addr, worker) in held {
            account.name(addr, worker);
        }
        self.name_stores(killed, &mut account);
        let own = self.ground.pool.open(0);
        let mut to_free = Vec::new();
        for link in self.ground.slots.iter().flat_map(|slot| slot.links) {
            match take_linked(&own, link) {
                Ok(Some(addr)) => {
                    to_free.extend(account.name(addr, format!("the link {link}")).map(|_| addr));
                }
                Ok(None) => {}
                Err(error) => account.findings.push(Finding::Refused(format!("{link}: {error}"))),
            }
            if let Err(error) = own.write_lock_within(link, 8, LOCKED) {
                account.findings.push(Finding::Refused(format!("the lock of {link}: {error}")));
            }
        }
        for client in killed.iter().filter(|client| client.remains == Remains::Objects) {
            for addr in &client.objects {
                let Some(bytes) = account.name(*addr, format!("{client:?}")) else { continue };
                account.findings.extend(fault_of(&own, *addr, bytes, client));
                to_free.push(*addr);
            }
        }
        let doubtful = doubtful(killed);
        let mut in_hand = Vec::new();
        let of = |remains: Remains, slot: Option<usize>| {
            let is_wanted = move |client: &&Killed| {
                client.remains == remains && slot.is_none_or(|slot| client.slot == slot)
            };
            killed.iter().filter(is_wanted).collect::<Vec<_>>()
        };
        for (index, slot) in self.ground.slots.iter().enumerate() {
            let hands = of(Remains::InHand, Some(index));
            in_hand.extend(account.name_hands(slot.bytes, &hands, &doubtful));
        }
        in_hand.extend(account.name_hands(RUN, &of(Remains::RunInHand, None), &doubtful));
        self.in_hand += in_hand.len();
        for client in doubtful {
            to_free.extend(account.name_doubtful(client));
        }
        for addr in to_free.into_iter().chain(in_hand) {
            if let Err(error) = own.free(addr) {
                account.findings.push(Finding::Refused(format!("{addr} can't be freed: {error}")));
            }
        }
        own.close();
        account.close()
    }

    /// A request of a killed client of rack 1 to rack 0 may be executed after the client's file is
    /// gone. Requests between two racks are executed in order, so an answer to a new request shows
    /// that all earlier ones are done.
    fn wait_for_requests_of_the_dead(&self) {
        let own = self.ground.pool.open(1);
        let last = own.alloc(RUN).expect("room in rack 0");
        own.free(last).expect("an object in use");
        own.close();
    }

    fn wait_for_newcomers(&self) -> Option<Finding> {
        // The memory of what they had is free once no pin is left.
        let gone = || {
            self.before.newcomers_are_gone(&self.ground.pool)
                && census::retired(&self.ground.pool) == 0
        };
        (!try_wait_until(self.timeout, gone)).then_some(Finding::Overdue)
    }

    /// Has the workers check their objects and pause; returns the objects.
    fn hold_workers(&mut self) -> Vec<(GlobalAddr, String)> {
        let mut held = Vec::new();
        for (rack, worker) in self.workers.iter_mut().enumerate() {
            let said = worker.ask("hold");
            let objects = said.strip_prefix("held").expect("a client that works on");
            for object in objects.split_whitespace() {
                let (addr, _) = object.split_once(':').expect("an object");
                let addr = crate::client::parse_addr(addr);
                held.push((addr, format!("the client of rack {rack} that works on")));
            }
        }
        held
    }

    fn release_workers(&mut self) {
        for worker in &mut self.workers {
            assert_eq!(worker.ask("go"), "ok", "a client that works on");
        }
    }

    /// Checks that the entries of all tables are whole, and that no other object of their size is
    /// in use.
    fn check_tables(&self) -> Vec<Finding> {
        let own = Arc::new(self.ground.pool.open(0));
        let mut findings = Vec::new();
        let mut entries = 0;
        for slot in &self.ground.slots {
            let mut torn = Vec::new();
            let count = |key: &[u8], value: &[u8]| {
                entries += 1;
                if number_of(value).is_none() {
                    torn.push(String::from_utf8_lossy(key).into_owned());
                }
            };
            let table = Table::open(Arc::clone(&own), slot.table);
            if let Err(error) = table.and_then(|table| table.handle().for_each(count)) {
                findings.push(Finding::Torn(format!("the table {}: {error}", slot.table)));
            }
            let torn = torn.into_iter().map(|key| format!("the value of {key} in {}", slot.table));
            findings.extend(torn.map(Finding::Torn));
        }
        let found = census::objects(&self.ground.pool);
        let objects = found.values().filter(|bytes| **bytes == ENTRY).count();
        if objects != entries {
            findings.push(Finding::Entries { objects, entries });
        }
        findings
    }

    /// Destroys all tables.
    pub(super) fn destroy_tables(&self) -> Vec<Finding> {
        let own = Arc::new(self.ground.pool.open(0));
        let destroy = |table: GlobalAddr| {
            let done = Table::open(Arc::clone(&own), table).and_then(Table::destroy);
            done.err().map(|error| Finding::Refused(format!("the table {table}: {error}")))
        };
        self.ground.slots.iter().filter_map(|slot| destroy(slot.table)).collect()
    }

    /// Checks that the daemons' metrics agree with their metadata.
    fn check_metrics(&self) -> Vec<Finding> {
        let mut findings: Vec<_> = self.wait_for_newcomers().into_iter().collect();
        let counted: u64 = census::objects(&self.ground.pool).values().sum();
        let mut said = 0;
        let is_equal = try_wait_until(self.timeout, || {
            said = self.ground.pool.allocated().iter().sum();
            said == counted
        });
        findings.extend((!is_equal).then_some(Finding::Counts { said, counted }));
        findings
    }
}

/// A fault in the contents of an object of a killed client.
fn fault_of(own: &Pool, addr: GlobalAddr, bytes: u64, killed: &Killed) -> Option<Finding> {
    let mut found = vec![0; usize::try_from(bytes).expect("a small object")];
    if let Err(error) = own.read(addr, &mut found) {
        return Some(Finding::Refused(format!("{addr} can't be read: {error}")));
    }
    let tags: &[u64] =
        if killed.operation == "write" { &[addr.raw(), addr.raw() ^ 1] } else { &[addr.raw()] };
    let mut number = 0;
    if killed.operation == "add" {
        // In place of the first bytes of the pattern there is a number.
        number = found.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        found[..8].copy_from_slice(&contents::of(addr.raw(), 8));
    }
    // Byte by byte: an interrupted copy may have ended anywhere.
    let all: Vec<Vec<u8>> = tags.iter().map(|tag| contents::of(*tag, found.len())).collect();
    let differs = (0..found.len()).find(|at| all.iter().all(|of| of[*at] != found[*at]));
    let what = match differs {
        _ if number > 1 => format!("{addr} was raised by {number}: {killed:?}"),
        Some(at) => format!("{addr} holds at {at} what nobody has written: {killed:?}"),
        None => return None,
    };
    Some(Finding::Torn(what))
}

/// Takes the object to which a link points out of it.
fn take_linked(own: &Pool, link: GlobalAddr) -> Result<Option<GlobalAddr>, AccessError> {
    let mut word = [0; 8];
    own.read(link, &mut word)?;
    own.write(link, &[0; 8])?;
    let word = u64::from_le_bytes(word);
    let is_object = word != 0 && word & TOMBSTONE == 0;
    Ok(is_object.then(|| GlobalAddr::from_raw(word)))
}
