//! Gets of objects that are in files of other racks: docs/design/spill.md.

use std::time::{Duration, Instant};

use rackpool_kv::now_ms;

use super::board::{Boards, Key};
use super::records::{Alive, CastNumber, Outcome, Request, RestoreRequest};
use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::store::{Handles, PlacedHead, Store};
use crate::wait::Pauses;

/// The pause between two looks whether the agent lives, and whether the object is still in the
/// file.
const LOOK: Duration = Duration::from_secs(1);
/// After this time the agent is asked again: it may have been killed after it took the request. The
/// time is doubled then, since the agent may also be reading a long file.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Asks the agent in the rack of a stub to bring the object back, and waits until it has.
pub(crate) fn ask_to_restore(
    store: &Store,
    handles: &mut Handles,
    keys: &Keys,
    stub: &PlacedHead,
) -> Result<(), StoreError> {
    let (own, rack) = (store.pool().rack(), stub.head.rack);
    let number = CastNumber(rand::random());
    let (of_own, answer) =
        (Key::Alive(number, own), Key::Outcome { cast: number, of: rack, root: own });
    let ((header, stamp), id) = (store.header(), keys.id().to_vec());
    let request = RestoreRequest { number, from: own, store: header, stamp, id };
    let mut boards = Boards::open(store.pool())?;
    let is_waited_for =
        |handles: &mut Handles| Ok::<_, StoreError>(handles.find(keys.object())? == Some(*stub));
    let restored = wait(store, handles, &mut boards, (request, of_own, answer), is_waited_for);
    // A sweep removes it if this fails, and an answer that comes now.
    let _ = boards.remove(of_own);
    restored
}

/// Asks, and waits for the answer or until the object is not waited for any more.
fn wait(
    store: &Store,
    handles: &mut Handles,
    boards: &mut Boards,
    (request, of_own, answer): (RestoreRequest, Key, Key),
    is_waited_for: impl Fn(&mut Handles) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let Key::Outcome { of: rack, .. } = answer else { return Ok(()) };
    let not_restored = |why: String| StoreError::NotRestored { rack, why };
    let (mut ask_at, mut pause, mut look_at) = (Instant::now(), ASK_AGAIN, Instant::now());
    let (mut pauses, request) = (Pauses::default(), Request::Restore(request));
    loop {
        let now = Instant::now();
        if now >= look_at {
            store.check_in_use()?;
            if !is_waited_for(handles)? {
                return Ok(());
            }
            let inbox = boards.inbox_of(rack)?.map_err(|why| not_restored(why.to_string()))?;
            // The answer is kept as long as this is written.
            boards.write(of_own, &Alive { at_ms: now_ms() })?;
            if now >= ask_at {
                boards.ask(inbox, &request)?;
                (ask_at, pause) = (now + pause, 2 * pause);
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
