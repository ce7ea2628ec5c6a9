//! Gets of objects that are in files of other racks: docs/design/spill.md.

use std::time::{Duration, Instant};

use rackpool_client::RackId;
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
    let ((header, stamp), id) = (store.header(), keys.id().to_vec());
    let (number, from) = (CastNumber(rand::random()), store.pool().rack());
    let request = RestoreRequest { number, from, store: header, stamp, id };
    let mut boards = Boards::open(store.pool())?;
    let restored = wait(&mut boards, stub.head.rack, &request, || {
        store.check_in_use()?;
        Ok(handles.find(keys.object())? == Some(*stub))
    });
    // An answer that comes now is swept after that.
    let _ = boards.remove(Key::Alive(number, from));
    restored
}

/// Asks the agent of a rack, and waits for its answer or until the object `is_in_file` no more.
fn wait(
    boards: &mut Boards,
    rack: RackId,
    request: &RestoreRequest,
    mut is_in_file: impl FnMut() -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let RestoreRequest { number, from, .. } = *request;
    let answer = Key::Outcome { cast: number, of: rack, root: from };
    let not_restored = |why: String| StoreError::NotRestored { rack, why };
    let request = Request::Restore(request.clone());
    let (mut look_at, mut ask_at, mut until_next) = (Instant::now(), Instant::now(), ASK_AGAIN);
    let mut pauses = Pauses::default();
    loop {
        let now = Instant::now();
        if now >= look_at {
            if !is_in_file()? {
                return Ok(());
            }
            let inbox = boards.inbox_of(rack)?.map_err(|why| not_restored(why.to_string()))?;
            // The answer is kept as long as this is written.
            boards.write(Key::Alive(number, from), &Alive { at_ms: now_ms() })?;
            if now >= ask_at {
                boards.ask(inbox, &request)?;
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
