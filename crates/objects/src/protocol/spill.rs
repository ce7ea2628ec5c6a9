//! Objects that move to a file of their rack and back, or to another rack: `docs/design/spill.md`.
//!
//! | call | steps, in the order that matters |
//! |---|---|
//! | [`spill`] | pin; search; [save](Steps::save); close the registration; search; remove the |
//! | | replicas of its racks; [replace by a stub](Steps::replace_by_stub); remove the |
//! | | registration |
//! | [`restore`] | [load](Steps::load); [replace the stub](Steps::replace_by_copy) |
//! | [`restore`] elsewhere | [asks](Steps::ask_to_restore) a program of the file's rack |
//! | [`adopt`] | [allocate](Steps::allocate); pin; [fill](Steps::fill); the steps of a spill from |
//! | | the registration on, with the copy instead of a stub |
//! | [`remove_unused_file`] | [lock](Steps::lock_unused); search; read the number; search; |
//! | | removes the file if no entry names it |

use super::steps::{Loaded, Pinned, Saved, Source, Steps};
use super::{Got, is_linked, unreplicate};
use crate::layout::head::FileNumber;
use crate::store::PlacedHead;

/// Brings a spilled object back into the memory of its rack. `None` if another program has done so,
/// or it was deleted.
pub(super) fn restore<S: Steps>(steps: &mut S, stub: &PlacedHead) -> Result<Got<S>, S::Error> {
    if stub.head.rack != steps.rack() {
        return match steps.ask_to_restore(stub) {
            Err(error) if is_linked(steps, stub)? => Err(error),
            Ok(()) | Err(_) => Ok(None),
        };
    }
    let loaded = steps.load(stub);
    steps.check_in_use()?;
    let Loaded { mut object, pin, file } = match loaded {
        Ok(Some(loaded)) => loaded,
        Err(error) if is_linked(steps, stub)? => return Err(error),
        Ok(None) | Err(_) => return Ok(None),
    };
    let is_replaced = steps.replace_by_copy(stub, &mut object)?;
    drop(file);
    Ok(is_replaced.then_some(Pinned { pin, head: object.head }))
}

/// Replaces an object of this rack by a stub whose bytes are in a file. Returns whether it did: not
/// if the object has changed, or was used meanwhile.
pub(crate) fn spill<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<bool, S::Error> {
    let pin = steps.pin(object.place.addr);
    // As for a get: the pin counts only if the object is linked now.
    if !is_linked(steps, object)? {
        return Ok(false);
    }
    let saved = steps.save(pin?, object);
    steps.check_in_use()?;
    let Saved { number, new_file } = match saved {
        Ok(Some(saved)) => saved,
        Err(error) if is_linked(steps, object)? => return Err(error),
        Ok(None) | Err(_) => return Ok(false),
    };
    let is_replaced = replace(steps, object, |steps| steps.replace_by_stub(object, number))?;
    if !is_replaced && new_file.is_some() {
        steps.delete_file(number);
    }
    // Locked until an entry names it, or it is gone.
    drop(new_file);
    Ok(is_replaced)
}

/// Moves an object of another rack into this one. Returns whether it did: not if the object has
/// changed.
pub(crate) fn adopt<S: Steps>(steps: &mut S, object: &PlacedHead) -> Result<bool, S::Error> {
    let mut copy = steps.allocate(object)?;
    // This program owns the memory, so the pin counts.
    let pin = steps.pin(copy.addr)?;
    let filled = steps.fill(&mut copy, object, None);
    steps.check_in_use()?;
    match filled {
        Ok(()) => {}
        Err(error) if is_linked(steps, object)? => return Err(error),
        Err(_) => return Ok(false),
    }
    let is_replaced = replace(steps, object, |steps| steps.replace_by_copy(object, &mut copy))?;
    drop(pin);
    Ok(is_replaced)
}

/// Replaces an object, as [`remove`](super::remove) removes it.
fn replace<S: Steps>(
    steps: &mut S,
    object: &PlacedHead,
    replace: impl FnOnce(&mut S) -> Result<bool, S::Error>,
) -> Result<bool, S::Error> {
    let Some(closed) = unreplicate(steps, object)? else { return Ok(false) };
    let is_replaced = replace(steps)?;
    // A registration that can't be removed now is an orphan.
    let _ = steps.remove_registration(&closed);
    Ok(is_replaced)
}

/// Removes a file of this rack if no entry names it: a program was killed before it replaced the
/// object, or the object was deleted by a program of another rack.
pub(crate) fn remove_unused_file<S: Steps>(
    steps: &mut S,
    number: FileNumber,
) -> Result<(), S::Error> {
    // A program that has locked it is about to publish an entry that names it.
    let Some(lock) = steps.lock_unused(number)? else { return Ok(()) };
    if let Some(object) = steps.find(Source::Objects)?
        && object.head.rack == steps.rack()
    {
        let its = steps.file_of(&object);
        // If the entry is another one by now, the next call finds out.
        if !is_linked(steps, &object)? || its? == Some(number) {
            return Ok(());
        }
    }
    steps.delete_file(number);
    drop(lock);
    Ok(())
}
