//! The protocol of an object and its replicas: get, delete, spill, and the removal of what killed
//! programs left behind. `docs/design/objects.md` and `docs/design/spill.md` have the correctness
//! argument; the module `exploration` runs these functions in every order.
//!
//! | call | steps, in the order that matters |
//! |---|---|
//! | [`get`] | search; [pin](Steps::pin); search again; a replica: is it ready? |
//! | [`get`] elsewhere | [allocate](Steps::allocate); pin; replica 1 to 3; join the chain; |
//! | | [fill](Steps::fill); search again; replica 4 and 5 |
//! | replica, 1 and 2 | store the rack's bit in the registration; search |
//! | replica, 3 | [publish](Steps::insert_replica), not ready |
//! | join the chain | name the rack in the registration, as the last one; search |
//! | replica, 4 | is the [registration open](is_open)? search |
//! | replica, 5 | [ready](Steps::set_ready) |
//! | [`get`] beside it | [waits](Steps::wait) for the replica that is being filled |
//! | [`delete`] | close the registration; search; remove the replicas of its racks; |
//! | | remove the object; remove the registration |
//! | [`remove_abandoned`] | removes a replica that is not ready and has not grown for a second |
//! | [`remove_orphan`] | reads the registration; search; removes it if its version is not linked |

mod spill;
mod steps;

use rackpool_client::RackId;
use rackpool_kv::Version;

pub(crate) use self::spill::{adopt, remove_unused_file, spill};
pub(crate) use self::steps::{Loaded, Pinned, Replica, Saved, Source, Steps, Words};
use crate::layout::registration::Registration;
use crate::store::PlacedHead;

/// The time of an object's last use is stored anew if it is older than this, in milliseconds.
const LAST_USE_MS: u64 = 1000;
/// The shortest object, in bytes, that racks bring from each other's replicas. To join a chain
/// takes about 20 accesses to other racks, and to find the source 25: for this length some
/// hundredths of the time of a get.
pub(crate) const CHAIN_BYTES: u64 = 4 << 20;

type Got<S> = Option<Pinned<<S as Steps>::Pin>>;

/// The object, pinned in this rack; `None` if there is none.
pub(crate) fn get<S: Steps>(steps: &mut S) -> Result<Got<S>, S::Error> {
    loop {
        let replica = steps.find(Source::Replicas)?;
        if let Some(replica) = &replica
            && let Some(got) = pin(steps, Source::Replicas, replica)?
        {
            return Ok(Some(got));
        }
        let Some(object) = steps.find(Source::Objects)? else { return Ok(None) };
        if object.head.is_spilled() {
            match spill::restore(steps, &object)? {
                None => continue,
                got => return Ok(got),
            }
        }
        let got = match (steps.is_local(&object), replica) {
            (Ok(true), _) => pin(steps, Source::Objects, &object)?,
            // Another program may have brought it already.
            (Ok(false), None) if steps.open_replicas()? => None,
            (Ok(false), None) => bring(steps, &object)?,
            // Another program brings it, or has been killed.
            (Ok(false), Some(replica)) => {
                steps.wait(&replica)?;
                remove_abandoned(steps)?;
                None
            }
            (Err(error), _) if is_linked(steps, &object)? => return Err(error),
            (Err(_), _) => None,
        };
        if got.is_some() {
            return Ok(got);
        }
    }
}

/// Pins what a search has found. `None` if it has changed meanwhile, or is not ready.
fn pin<S: Steps>(steps: &mut S, source: Source, found: &PlacedHead) -> Result<Got<S>, S::Error> {
    let addr = found.place.addr;
    let pin = steps.pin(addr);
    // A head is unlinked before it is freed, so the pin counts if the head is linked now. If it is
    // not, its page may be used for something else.
    if steps.find(source)? != Some(*found) {
        return Ok(None);
    }
    let (pin, words, mut head) = (pin?, steps.words(addr)?, found.head);
    if source == Source::Replicas {
        let Some(extents) = words.ready else { return Ok(None) };
        head.extents = extents;
    }
    if words.idle_ms > LAST_USE_MS {
        steps.set_used(addr)?;
    }
    Ok(Some(Pinned { pin, head }))
}

/// Brings an object of another rack into this one, and makes the copy a replica. `None` if the
/// object has changed meanwhile, or another program brings it.
fn bring<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<Got<S>, S::Error> {
    let mut replica = steps.allocate(object)?;
    let addr = replica.addr;
    // This program owns the memory, so the pin counts, whether a replica comes of it or not.
    let pin = steps.pin(addr)?;
    let is_published = match publish(steps, object, &mut replica)? {
        Published::Here => true,
        // A delete has begun, or a rack is away. Until that ends each program gets its own copy.
        Published::Closed => false,
        Published::Other | Published::Gone => return Ok(None),
    };
    let source = if is_published { join(steps, object)? } else { None };
    let filled = steps.fill(&mut replica, object, source);
    steps.check_in_use()?;
    // What can't be read may be closed.
    if is_published && filled.is_ok() && is_open(steps, object).unwrap_or(false) {
        steps.set_ready(&replica)?;
        return Ok(Some(Pinned { pin, head: replica.head }));
    }
    if is_published
        && let Some(own) = steps.find(Source::Replicas)?
        && own.place.addr == addr
    {
        steps.remove(Source::Replicas, &own.place)?;
    }
    // Bytes that were read while the object was linked are its bytes.
    if !is_linked(steps, object)? {
        return Ok(None);
    }
    filled?;
    Ok(Some(Pinned { pin, head: replica.head }))
}

/// Whether a replica was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Published {
    Here,
    /// There is another replica.
    Other,
    /// A delete has closed the registration, or it can't be read.
    Closed,
    /// The object is not in the store any more.
    Gone,
}

/// Registers a replica and publishes it, not ready.
fn publish<S: Steps>(
    steps: &mut S,
    object: &PlacedHead,
    replica: &mut Replica<S::Memory>,
) -> Result<Published, S::Error> {
    let rack = steps.rack();
    let register = |now: Registration| (!now.is_closed).then(|| now.with(rack));
    let registered = match change_registration(steps, object, register) {
        Ok(registered) => registered,
        // The rack that stored it last is away, or has lost its memory. It may be closed.
        Err(_) if is_linked(steps, object)? => Registered::Closed,
        Err(_) => Registered::Gone,
    };
    Ok(match registered {
        Registered::As { .. } if steps.insert_replica(replica)? => Published::Here,
        Registered::As { .. } => Published::Other,
        Registered::Closed => Published::Closed,
        Registered::Gone => Published::Gone,
    })
}

/// Makes this rack, whose replica is published, the last one of the chain that brings the object.
/// Returns the rack that was the last one: its replica was published before.
fn join<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<Option<RackId>, S::Error> {
    if object.head.len() < CHAIN_BYTES {
        return Ok(None);
    }
    let rack = steps.rack();
    let join = |now: Registration| (!now.is_closed).then(|| now.with_last(rack));
    Ok(match change_registration(steps, object, join) {
        Ok(Registered::As { before, .. }) => before.last.filter(|last| *last != rack),
        // A delete has begun, or a rack has gone. The next step of the replica finds out.
        Ok(Registered::Closed | Registered::Gone) | Err(_) => None,
    })
}

/// Removes the object from all racks. Returns it if there was one.
pub(crate) fn delete<S: Steps>(steps: &mut S) -> Result<Option<PlacedHead>, S::Error> {
    while let Some(object) = steps.find(Source::Objects)? {
        if remove(steps, &object)? {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

/// Removes exactly this object from all racks. Returns whether it did.
pub(crate) fn remove<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<bool, S::Error> {
    let Some(closed) = unreplicate(steps, object)? else { return Ok(false) };
    // If it is another object by now, this is its file, or none, and this program removes neither.
    let file = if object.head.rack == steps.rack() { steps.file_of(object) } else { Ok(None) };
    let is_mine = steps.remove(Source::Objects, &object.place)?;
    // The delete has taken effect. A registration that can't be removed now is an orphan.
    let _ = steps.remove_registration(&closed);
    if is_mine && let Ok(Some(file)) = file {
        steps.delete_file(file);
    }
    Ok(is_mine)
}

/// Closes the registration of an object and removes its replicas: none becomes ready afterwards.
/// Returns the registration; `None` if the object is not in the store any more.
fn unreplicate<S: Steps>(
    steps: &mut S,
    object: &PlacedHead,
) -> Result<Option<Registration>, S::Error> {
    let close = |now: Registration| Some(now.closed());
    let Registered::As { now: closed, .. } = change_registration(steps, object, close)? else {
        return Ok(None);
    };
    for rack in closed.racks() {
        steps.remove_replica_of(rack)?;
    }
    Ok(Some(closed))
}

/// Removes the replica of this rack if the program that made it was killed before it was ready.
pub(crate) fn remove_abandoned<S: Steps>(steps: &mut S) -> Result<(), S::Error> {
    let Some(replica) = steps.find(Source::Replicas)? else { return Ok(()) };
    // If the replica was removed meanwhile, these are other words, and nothing is removed here.
    let words = steps.words(replica.place.addr);
    let words = match words {
        Err(_) if steps.find(Source::Replicas)? != Some(replica) => return Ok(()),
        words => words?,
    };
    if words.ready.is_none() && !words.is_brought() {
        steps.remove(Source::Replicas, &replica.place)?;
    }
    Ok(())
}

/// Removes the registration of an object that is not linked any more. An object that was removed
/// never comes back, so the registration names nothing.
pub(crate) fn remove_orphan<S: Steps>(steps: &mut S) -> Result<(), S::Error> {
    let found = steps.registration()?.as_deref().and_then(Registration::decode);
    let Some(found) = found else { return Ok(()) };
    let object = steps.find(Source::Objects)?;
    if object.is_none_or(|object| object.place.version != found.version) {
        steps.remove_registration(&found)?;
    }
    Ok(())
}

/// Stores a registration for the object if the one that it had is lost. Any rack may have a
/// replica, and a delete may have begun; so it is closed.
pub(crate) fn restore_registration<S: Steps>(steps: &mut S) -> Result<(), S::Error> {
    let object = match steps.find(Source::Objects) {
        // Its memory is lost too.
        Err(error) if S::is_lost(&error) => return Ok(()),
        found => found?,
    };
    match (steps.registration(), object) {
        (Err(error), Some(object)) if S::is_lost(&error) => {
            steps.replace_lost_registration(object.place.version)
        }
        (Err(error), None) if S::is_lost(&error) => Ok(()),
        (found, _) => found.map(drop),
    }
}

/// The result of a change of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// The registration was changed.
    As { before: Registration, now: Registration },
    /// A delete has closed the registration.
    Closed,
    /// The object is not in the store any more.
    Gone,
}

/// Changes the registration of an object by `change`, which returns `None` for a closed one.
fn change_registration<S: Steps>(
    steps: &mut S,
    object: &PlacedHead,
    change: impl Fn(Registration) -> Option<Registration>,
) -> Result<Registered, S::Error> {
    let version = object.place.version;
    loop {
        let found = steps.registration()?;
        let before = match registration_of(version, found.as_deref()) {
            Some(before) => before,
            // What was found is of an older object only if this one is in the store after that: no
            // registration is made for an object that is not.
            None if !is_linked(steps, object)? => return Ok(Registered::Gone),
            None => Registration::new(version),
        };
        let Some(now) = change(before) else { return Ok(Registered::Closed) };
        let is_stored = found.as_deref() == Some(&now.encode())
            || steps.replace_registration(found.as_deref(), &now)?;
        if !is_stored {
            continue;
        }
        // A delete may have made, closed and removed a registration since it was found absent. A
        // delete removes it only after the object.
        if is_linked(steps, object)? {
            return Ok(Registered::As { before, now });
        }
        // If that fails, the registration is an orphan.
        let _ = steps.remove_registration(&now);
        return Ok(Registered::Gone);
    }
}

/// The registration of an object, if there is one.
pub(crate) fn registration<S: Steps>(
    steps: &mut S,
    object: &PlacedHead,
) -> Result<Option<Registration>, S::Error> {
    Ok(registration_of(object.place.version, steps.registration()?.as_deref()))
}

/// Whether the registration of the object is there and not closed, and the object is linked. Each
/// delete that removes the object then closes the registration first, after this call began.
fn is_open<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<bool, S::Error> {
    let now = registration(steps, object)?;
    Ok(now.is_some_and(|now| !now.is_closed) && is_linked(steps, object)?)
}

fn registration_of(version: Version, found: Option<&[u8]>) -> Option<Registration> {
    found.and_then(Registration::decode).filter(|now| now.version == version)
}

fn is_linked<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<bool, S::Error> {
    Ok(steps.find(Source::Objects)? == Some(*object))
}
