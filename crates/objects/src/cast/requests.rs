//! Requests to the agents of other racks: to bring an object back from a file, or to take one for
//! which this rack has no memory. docs/design/spill.md.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rackpool_client::RackId;
use rackpool_kv::now_ms;

use super::board::{Boards, Key};
use super::records::{AgentRecord, Alive, CastNumber, ObjectRequest, Outcome, Request};
use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::store::{Handles, PlacedHead, Store, lock};
use crate::wait::Pauses;

/// The pause between two looks whether the agent lives, and whether the request is still of use;
/// and between two looks which racks lend memory.
const LOOK: Duration = Duration::from_secs(1);
/// After this time the agent is asked again: it may have been killed after it took the request. The
/// time is doubled then, since the agent may also be copying a large object.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// An agent without a new heartbeat for this time is taken for dead: it writes one each second.
const SILENT: Duration = Duration::from_secs(4);

/// The racks that have memory for objects of this one.
#[derive(Debug, Default)]
pub(crate) struct Lenders {
    boards: Option<Boards>,
    looked: Option<Instant>,
    racks: Vec<(RackId, AgentRecord)>,
    /// The heartbeat of each agent when it took no object. It is asked again after the next one.
    refused: HashMap<RackId, u64>,
}

impl Lenders {
    /// The rack with the most memory, if that is enough for `bytes`.
    fn choose(&mut self, store: &Store, bytes: u64) -> Result<Option<RackId>, StoreError> {
        if self.looked.is_none_or(|at| at.elapsed() > LOOK) {
            let boards = self.boards.get_or_insert_with(|| Boards::of_others(store.pool()));
            let refused = &self.refused;
            self.racks = boards.lenders()?;
            self.racks.retain(|(rack, record)| refused.get(rack) != Some(&record.seen_ms));
            self.looked = Some(Instant::now());
        }
        let most = self.racks.iter_mut().max_by_key(|(_, record)| record.lends_bytes);
        let Some((rack, record)) = most.filter(|(_, record)| record.lends_bytes >= bytes) else {
            return Ok(None);
        };
        record.lends_bytes -= bytes;
        Ok(Some(*rack))
    }

    fn refuse(&mut self, refusing: RackId) {
        let refused = self.racks.extract_if(.., |(rack, _)| *rack == refusing);
        self.refused.extend(refused.map(|(rack, record)| (rack, record.seen_ms)));
    }
}

impl Store {
    /// Asks a rack that has memory for it to take an object of this rack. Returns false if none
    /// did.
    pub(crate) fn give_away(
        &self,
        keys: &Keys,
        object: &PlacedHead,
        bytes: u64,
    ) -> Result<bool, StoreError> {
        let mut lenders = lock(&self.shared.lenders);
        let Some(rack) = lenders.choose(self, bytes)? else { return Ok(false) };
        let is_here = || self.with(|handles| Ok(handles.find(keys.object())? == Some(*object)));
        let mut boards = Boards::open(self.pool())?;
        match ask(self, &mut boards, rack, keys, Request::Adopt, is_here) {
            Ok(()) => Ok(!is_here()?),
            // It has no memory either, or has ended.
            Err(StoreError::NotRestored { .. }) => {
                lenders.refuse(rack);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Asks the agent in the rack of a stub to bring the object back, and waits until it has.
pub(crate) fn ask_to_restore(
    store: &Store,
    handles: &mut Handles,
    keys: &Keys,
    stub: &PlacedHead,
) -> Result<(), StoreError> {
    let mut boards = Boards::open(store.pool())?;
    let is_in_file = || Ok(handles.find(keys.object())? == Some(*stub));
    ask(store, &mut boards, stub.head.rack, keys, Request::Restore, is_in_file)
}

/// Asks the agent of a rack to do something with an object, and waits until it has, or until that
/// is not `is_wanted` any more.
fn ask(
    store: &Store,
    boards: &mut Boards,
    rack: RackId,
    keys: &Keys,
    request: impl FnOnce(ObjectRequest) -> Request,
    mut is_wanted: impl FnMut() -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let ((header, stamp), id) = (store.header(), keys.id().to_vec());
    let (number, from) = (CastNumber(rand::random()), store.pool().rack());
    let request = request(ObjectRequest { number, from, store: header, stamp, id });
    let asked = Asked { rack, number, from, request };
    let answered = asked.wait(boards, || {
        store.check_in_use()?;
        is_wanted()
    });
    // An answer that comes now is swept after that.
    let _ = boards.remove(Key::Alive(number, from));
    answered
}

/// A request to the agent of a rack.
struct Asked {
    rack: RackId,
    number: CastNumber,
    from: RackId,
    request: Request,
}

impl Asked {
    fn wait(
        &self,
        boards: &mut Boards,
        mut is_wanted: impl FnMut() -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let Self { rack, number, from, .. } = *self;
        let answer = Key::Outcome { cast: number, of: rack, root: from };
        let not_restored = |why: String| StoreError::NotRestored { rack, why };
        let (mut look_at, mut ask_at, mut until_next) = (Instant::now(), Instant::now(), ASK_AGAIN);
        let (mut pauses, mut heartbeat) = (Pauses::default(), (0, Instant::now()));
        loop {
            let now = Instant::now();
            if now >= look_at {
                if !is_wanted()? {
                    return Ok(());
                }
                let agent = boards.agent_of(rack)?.map_err(|why| not_restored(why.to_string()))?;
                if agent.seen_ms != heartbeat.0 {
                    heartbeat = (agent.seen_ms, now);
                } else if now.duration_since(heartbeat.1) > SILENT {
                    return Err(not_restored("its agent does not answer".into()));
                }
                // The answer is kept as long as this is written.
                boards.write(Key::Alive(number, from), &Alive { at_ms: now_ms() })?;
                if now >= ask_at {
                    boards.ask(Key::Inbox(rack, agent.inbox), &self.request)?;
                    (ask_at, until_next) = (now + until_next, 2 * until_next);
                }
                look_at = now + LOOK;
            }
            match boards.take::<Outcome>(answer)? {
                Some(Ok(Outcome::Shown | Outcome::Deleted)) => return Ok(()),
                Some(Ok(Outcome::Refused(why))) => return Err(not_restored(why)),
                Some(Err(error)) => return Err(not_restored(error.to_string())),
                None => std::thread::sleep(pauses.next(now.elapsed())),
            }
        }
    }
}
