//! The promises of the metadata server, across all of its starts (check C9).

use std::collections::BTreeMap;

use rackpool_model::{MemoryId, PageRange, RackId};
use rackpool_proto::Time;
use rackpool_proto::metadata::ConnectionToken;
use rackpool_proto::planted_bugs::Bugs;
use rackpool_wire::metadata::{Member, MetadataReply, MetadataRequest};
use rackpool_wire::swap::{FromServer, SwapId};

use crate::connection::Owner;
use crate::rules::{MEMBERSHIP_LEASE, RACKS};
use crate::world::{World, rack_id};

#[derive(Debug, Default)]
pub(crate) struct Promises {
    racks: [Known; RACKS],
    version: u64,
    /// The requester of each granted swap and its nonce; a swap number is used once.
    begun: BTreeMap<SwapId, (usize, u64)>,
    /// The last connection on which a message was refused.
    refused: Option<ConnectionToken>,
}

/// What the metadata server has told a rack.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    pages: Option<PageRange>,
    /// The newest registered incarnation of its daemon.
    life: u64,
    /// The connection over which it registered last, since this start of the server.
    connection: Option<ConnectionToken>,
    /// When its lease was last granted or renewed, on the clock of this start.
    renewed: Option<Time>,
    alive: bool,
}

impl Promises {
    /// Begins a new start of the server: only promises that hold for ever remain.
    pub(crate) fn begin_life(&mut self) {
        for known in &mut self.racks {
            (known.connection, known.renewed, known.alive) = (None, None, false);
        }
    }

    pub(crate) fn is_alive(&self, rack: usize) -> bool {
        self.racks[rack].alive
    }

    pub(crate) fn all_alive(&self) -> bool {
        self.racks.iter().all(|known| known.alive)
    }
}

impl Known {
    const fn renew(&mut self, now: Time) {
        (self.renewed, self.alive) = (Some(now), true);
    }
}

fn overlap(a: PageRange, b: PageRange) -> bool {
    let ends = |range: PageRange| u64::from(range.first.0) + u64::from(range.count);
    u64::from(a.first.0) < ends(b) && u64::from(b.first.0) < ends(a)
}

fn index(rack: RackId) -> usize {
    usize::from(rack.0)
}

pub(crate) fn memory_id(rack: usize) -> MemoryId {
    MemoryId(rack as u128 + 1)
}

impl<B: Bugs> World<B> {
    /// The boot of the server is durable: every rack that has not left has a whole lease.
    pub(crate) fn leases_begin(&mut self) {
        let now = self.server.clock.read(self.now);
        let stays = self.server.disk.racks().filter(|(_, record)| !record.left);
        for (rack, _) in stays {
            self.server.promises.racks[index(rack)].renew(now);
        }
    }

    pub(crate) fn lease_ended(&mut self, rack: RackId) {
        self.seen.expired += 1;
        let now = self.server.clock.read(self.now);
        let known = &mut self.server.promises.racks[index(rack)];
        known.alive = false;
        let renewed = known.renewed;
        let had = renewed.map(|renewed| now.since(renewed));
        if had.is_none_or(|had| had < MEMBERSHIP_LEASE) {
            self.breaks(|| format!("the lease of {rack} ends; it was renewed before {had:?}"));
        }
    }

    /// Checks a message of the metadata server.
    pub(crate) fn check_reply(&mut self, to: ConnectionToken, reply: &MetadataReply) {
        match reply {
            MetadataReply::Registered { pages, .. } => self.check_registered(to, *pages),
            MetadataReply::Renewed { version, members, .. } => {
                self.check_renewed(to, *version, members);
            }
            MetadataReply::Members { version, members } => self.check_told(*version, members),
            MetadataReply::Located { pages, home } => {
                let durable = self.server.disk.home(pages.first);
                if durable != Some(*home) {
                    let page = pages.first;
                    self.breaks(|| format!("{page} is said to be in {home}, not in {durable:?}"));
                }
            }
            MetadataReply::Refused(_) => self.server.promises.refused = Some(to),
            MetadataReply::Swap { .. } if self.server.failed => {
                self.breaks(|| "the metadata server swaps on although its disk has failed".into());
            }
            MetadataReply::Swap { message: FromServer::Granted { swap, nonce, .. }, .. } => {
                let Some((rack, _)) = self.daemon_at(to) else { return };
                let begun = self.server.promises.begun.insert(*swap, (rack, *nonce));
                if begun.is_some_and(|begun| begun != (rack, *nonce)) {
                    self.breaks(|| format!("{swap:?} is begun for two"));
                }
            }
            _ => {}
        }
    }

    /// Returns the rack and the incarnation of the daemon that opened the connection.
    fn daemon_at(&self, connection: ConnectionToken) -> Option<(usize, u64)> {
        match self.connections.get(usize::try_from(connection.0).ok()?)?.owner {
            Owner::Rack { rack, life } => Some((rack, life)),
            Owner::Client(_) | Owner::Goodbye(_) => None,
        }
    }

    fn check_registered(&mut self, to: ConnectionToken, pages: PageRange) {
        let Some((rack, life)) = self.daemon_at(to) else {
            return self.breaks(|| format!("{to:?} is registered, and is no rack's"));
        };
        let durable = self.server.disk.rack(rack_id(rack)).map(|record| record.incarnation.0);
        let now = self.server.clock.read(self.now);
        let racks = &mut self.server.promises.racks;
        let others = racks.iter().enumerate().filter(|(other, _)| *other != rack);
        let shared = others.filter_map(|(_, other)| other.pages).find(|one| overlap(*one, pages));
        let known = &mut racks[rack];
        let before = *known;
        known.pages = Some(pages);
        known.life = before.life.max(life);
        known.connection = Some(to);
        known.renew(now);
        if before.pages.is_some_and(|before| before != pages) {
            self.breaks(|| format!("rack {rack} had {:?}, and gets {pages:?}", before.pages));
        } else if let Some(shared) = shared {
            self.breaks(|| format!("rack {rack} gets {pages:?}, another one has {shared:?}"));
        } else if life < before.life {
            self.breaks(|| format!("life {life} of rack {rack} takes it from {}", before.life));
        } else if durable.is_none_or(|durable| durable < life) {
            self.breaks(|| {
                format!("rack {rack} is told that it is registered, which is not durable")
            });
        }
    }

    fn check_renewed(&mut self, to: ConnectionToken, version: u64, members: &[Member]) {
        let now = self.server.clock.read(self.now);
        if let Some((rack, _)) = self.daemon_at(to) {
            self.server.promises.racks[rack].renew(now);
        }
        self.check_told(version, members);
    }

    fn check_told(&mut self, version: u64, members: &[Member]) {
        let before = std::mem::replace(&mut self.server.promises.version, version);
        if version < before {
            self.breaks(|| format!("the membership had version {before:#x}, now {version:#x}"));
        }
        if let Err(what) = self.check_members(members) {
            self.breaks(|| what);
        }
    }

    /// Checks that members are durably registered racks, each with its page ids.
    fn check_members(&self, members: &[Member]) -> Result<(), String> {
        for (place, member) in members.iter().enumerate() {
            let rack = member.rack;
            let record = self.server.disk.rack(rack);
            let known = record.is_some_and(|record| {
                record.incarnation == member.incarnation && record.memory == member.memory
            });
            if !known {
                return Err(format!("{member:?} is a member, and has not registered: {record:?}"));
            }
            let told = self.server.promises.racks[index(rack)].pages;
            if told.is_some_and(|told| told != member.pages) {
                return Err(format!("{member:?} was told that it has {told:?}"));
            }
            if let Some(other) =
                members[..place].iter().find(|other| overlap(other.pages, member.pages))
            {
                return Err(format!("{member:?} and {other:?} have the same pages"));
            }
        }
        Ok(())
    }

    /// Returns true if a swap message must be refused: it comes over a connection on which the rack
    /// is not registered now.
    pub(crate) fn expects_refusal(
        &mut self,
        from: ConnectionToken,
        request: &MetadataRequest,
    ) -> bool {
        let MetadataRequest::Swap { rack, .. } = request else { return false };
        self.server.promises.refused = None;
        self.server.ready && self.server.promises.racks[index(*rack)].connection != Some(from)
    }

    pub(crate) fn check_refused(&mut self, from: ConnectionToken) {
        if self.server.promises.refused != Some(from) {
            self.breaks(|| format!("what {from:?} says of a swap counts, and it is an old one"));
        }
    }

    /// Checks that at rest all racks are members, alive, with their page ids.
    pub(crate) fn check_membership(&mut self) -> Result<(), String> {
        let Some(MetadataReply::Status(status)) = self.ask_server(MetadataRequest::Status) else {
            return Err("the metadata server does not tell its status".into());
        };
        self.check_members(&status.members)?;
        for rack in 0..RACKS {
            let (id, life) = (rack_id(rack), self.racks[rack].life);
            let stands = status.members.iter().any(|member| {
                (member.rack, member.alive, member.incarnation.0) == (id, true, life)
                    && Some(member.pages) == self.racks[rack].pages
            });
            if !stands {
                return Err(format!("rack {rack} is no member at the end: {:?}", status.members));
            }
        }
        Ok(())
    }
}
