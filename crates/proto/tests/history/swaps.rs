//! The model of swaps: what must be true of them.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{Epoch, Incarnation, PageId, RackId};
use rackpool_proto::directory::Moved;
use rackpool_proto::metadata::{Change, ConnectionToken};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement};
use rackpool_wire::swap::{FromServer, PageLife, SwapId, ToServer};

use super::model::Model;
use super::step::{Mistake, Say};

/// The pages, racks and outcomes of all swaps.
#[derive(Default)]
pub(crate) struct Swaps {
    moved: BTreeMap<PageId, Moved>,
    wanted: BTreeMap<(RackId, u64), (PageId, PageId)>,
    begun: Vec<Begun>,
    /// Swaps of which a rack was told that they are not committed.
    denied: BTreeSet<SwapId>,
    stored: BTreeSet<SwapId>,
    /// The first page of a swap in the batch being checked.
    half: Option<Moved>,
    connections: BTreeMap<RackId, ConnectionToken>,
    /// The store has failed in this boot.
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    swap: SwapId,
    requester: RackId,
    home: RackId,
    page: PageId,
    offered: PageId,
}

impl Swaps {
    pub(super) fn moved(&self, page: PageId) -> Option<&Moved> {
        self.moved.get(&page)
    }

    pub(super) fn committed(&self) -> usize {
        self.stored.len()
    }

    pub(super) fn connected(&mut self, rack: RackId, connection: ConnectionToken) {
        self.connections.insert(rack, connection);
    }

    pub(super) const fn failed(&mut self) {
        self.failed = true;
    }

    pub(super) fn restarted(&mut self) {
        self.failed = false;
        self.connections.clear();
    }

    fn choose(&self, number: u8) -> Option<Begun> {
        // One of the last four.
        let last = self.begun.len().checked_sub(1)?;
        self.begun.get(last.saturating_sub(usize::from(number % 4))).copied()
    }
}

impl Model {
    pub(super) fn stored_together(&mut self, changes: &[Change]) {
        for change in changes {
            self.stored(change);
        }
        assert_eq!(self.swaps.half, None, "half of a swap in a batch");
    }

    /// The registrations that the daemons of all racks send after they have lost their connections.
    pub(super) fn rejoins(&self) -> Vec<(RackId, MetadataRequest)> {
        let rejoins = self.racks.iter().map(|(rack, (memory, incarnation, _))| {
            let run = self.runs.iter().find(|run| run.memory == *memory).unwrap();
            let announcement = RackAnnouncement {
                rack: *rack,
                memory: *memory,
                incarnation: Incarnation(*incarnation),
                frames: run.pages.count,
                page_bytes: 2 << 20,
                seen: None,
                control_path: String::new(),
                fabric_address: "tcp:0".into(),
            };
            (*rack, MetadataRequest::Register(announcement))
        });
        rejoins.collect()
    }

    /// The request that carries a rack's swap message; `None` if it has none to send.
    pub(super) fn says(
        &mut self,
        mut rack: RackId,
        mistake: Mistake,
        say: Say,
    ) -> Option<(ConnectionToken, MetadataRequest)> {
        let (message, nonce_of) = match say {
            Say::Want { page, offered, nonce } => {
                let last = self.runs.last()?.pages.first.0 + 6;
                let model = &*self;
                let homes = |at_home: bool| {
                    let fits = |page: &PageId| {
                        model.home(*page).is_some_and(|home| (home == rack) == at_home)
                    };
                    (1..=last).map(PageId).filter(fits).collect::<Vec<_>>()
                };
                let choose = |pages: Vec<PageId>, number: u8| {
                    pages.get(usize::from(number).checked_rem(pages.len())?).copied()
                };
                let offered = choose(homes(true), offered)?;
                // Sometimes a page that the rack can't request.
                let any = PageId(1 + u32::from(page) % last);
                let page = if page < 32 { any } else { choose(homes(false), page)? };
                let nonce = u64::from(nonce) + 256 * self.swaps.wanted.len() as u64;
                (ToServer::Request { page, offered, nonce }, Some((nonce, page, offered)))
            }
            Say::Commit { swap, epoch } => {
                let Begun { swap, requester, page, offered, .. } = self.swaps.choose(swap)?;
                rack = if mistake == Mistake::Rack { rack } else { requester };
                let life = |page| PageLife { page, epoch: Epoch::new(epoch.into()) };
                (ToServer::Commit { swap, page: life(page), offered: life(offered) }, None)
            }
            Say::Outcome { swap } => {
                let Begun { swap, requester, home, page, offered } = self.swaps.choose(swap)?;
                rack = match mistake {
                    Mistake::Rack => rack,
                    _ if rack.0.is_multiple_of(2) => requester,
                    _ => home,
                };
                let page = if rack == requester { page } else { offered };
                (ToServer::Outcome { swap, page }, None)
            }
            Say::End { swap } => (ToServer::Abort { swap: self.swaps.choose(swap)?.swap }, None),
        };
        if let Some((nonce, page, offered)) = nonce_of {
            self.swaps.wanted.insert((rack, nonce), (page, offered));
        }
        let (_, current, _) = *self.racks.get(&rack)?;
        let current = current + u64::from(mistake == Mistake::Incarnation);
        let from = match mistake {
            Mistake::Connection => ConnectionToken(9),
            _ => *self.swaps.connections.get(&rack)?,
        };
        let incarnation = Incarnation(current);
        Some((from, MetadataRequest::Swap { rack, incarnation, message }))
    }

    pub(super) fn page_moved(&mut self, moved: Moved) {
        let swap = moved.swap;
        let begun = self.swaps.begun.iter().find(|begun| begun.swap == swap).copied();
        let begun = begun.expect("a swap that its requester knows");
        assert_eq!(swap.0 >> 32, u64::from(self.boots), "a swap of an earlier boot");
        assert!(!self.swaps.denied.contains(&swap), "{swap:?} was denied");
        assert_eq!(self.racks[&moved.home].0, moved.memory, "not to a memory that is gone");
        match self.swaps.half.take() {
            None => {
                assert_eq!((moved.page, moved.home), (begun.page, begun.requester));
                assert_eq!(self.home(begun.page), Some(begun.home));
                assert_eq!(self.home(begun.offered), Some(begun.requester));
                self.swaps.half = Some(moved);
            }
            Some(half) => {
                assert_eq!(half.swap, swap);
                assert_eq!((moved.page, moved.home), (begun.offered, begun.home));
                assert!(self.swaps.stored.insert(swap), "{swap:?} is committed twice");
            }
        }
        self.swaps.moved.insert(moved.page, moved);
    }

    /// Checks an unsolicited message: it must follow from what is durable and go to the rack that
    /// it concerns.
    pub(super) fn pushed(&mut self, to: ConnectionToken, reply: &MetadataReply) {
        let message = match reply {
            MetadataReply::Refused(_) => return,
            MetadataReply::Members { version, .. } => return self.saw_version(*version),
            MetadataReply::Swap { message, .. } => *message,
            other => panic!("{other:?} was said unasked"),
        };
        assert!(!self.swaps.failed, "{message:?} although the store has failed");
        let mut racks = self.swaps.connections.iter().filter(|(_, connection)| **connection == to);
        match message {
            FromServer::Granted { swap, nonce, home } => {
                let asked = |(rack, _): (&RackId, _)| {
                    let (page, offered) = *self.swaps.wanted.get(&(*rack, nonce))?;
                    Some(Begun { swap, requester: *rack, home, page, offered })
                };
                let begun = racks.find_map(asked).expect("a requester at that connection");
                assert_eq!(self.home(begun.page), Some(home));
                assert_eq!(self.home(begun.offered), Some(begun.requester));
                assert_eq!(swap.0 >> 32, u64::from(self.boots));
                if self.swaps.begun.iter().all(|known| known.swap != swap) {
                    self.swaps.begun.push(begun);
                }
            }
            FromServer::Refused { nonce, .. } => {
                assert!(racks.any(|(rack, _)| self.swaps.wanted.contains_key(&(*rack, nonce))));
            }
            FromServer::Decision { swap, committed } => {
                assert!(racks.next().is_some(), "nobody is there");
                assert!(committed <= self.swaps.stored.contains(&swap), "said before durable");
                if !committed {
                    self.swaps.denied.insert(swap);
                }
            }
        }
    }

    pub(super) fn explained(&self, page: PageId, reply: &MetadataReply) {
        let Some(born) = self.runs.iter().find(|run| run.pages.contains(page)) else {
            return assert_eq!(*reply, MetadataReply::NoSuchPage);
        };
        let MetadataReply::Explained(entry) = reply else { panic!("{reply:?}") };
        assert_eq!((entry.page, entry.born, entry.home), (page, born.rack, self.home(page)));
        let moved = self.swaps.moved(page);
        assert_eq!(entry.memory, moved.map_or(born.memory, |moved| moved.memory));
        let last = entry.moved.map(|last| (last.swap, last.epoch));
        assert_eq!(last, moved.map(|moved| (moved.swap, moved.epoch)));
        if let Some(lock) = entry.locked {
            assert!(page == lock.wanted || page == lock.offered);
            assert!(!self.swaps.denied.contains(&lock.swap));
            assert!(!self.swaps.stored.contains(&lock.swap));
        }
    }
}
