//! How a program becomes a member of a group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, Pool};
use rackpool_proto::group::words::Found;

use super::names::{GroupId, Names};
use super::options::GroupFailure;
use super::place::{GroupPlace, OwnPlace, read_group};
use crate::error::StoreError;

/// The pause between two looks at the root.
const LOOK: Duration = Duration::from_millis(5);

/// A group that this program is a member of.
pub(super) struct Joined {
    pub(super) root: GlobalAddr,
    pub(super) group: GroupPlace,
    /// The number of this member.
    pub(super) own: usize,
    pub(super) place: OwnPlace,
}

/// Waits until the root of the group has this program as the member of its rack.
pub(super) fn join(
    pool: &Arc<Pool>,
    names: &Names,
    timeout: Duration,
) -> Result<Joined, StoreError> {
    let begin = Instant::now();
    let mut applied = Applied { pool, names, place: None };
    loop {
        let why = match look(pool, names)? {
            Look::Nothing => GroupFailure::NoRoot,
            Look::NotNamed => GroupFailure::NotNamed(pool.rack()),
            Look::Group { group, .. } if group.words.members().is_empty() => {
                let mut place = match applied.place.take() {
                    Some(place) if place.bytes() == group.bytes => place,
                    _ => OwnPlace::new(pool, group.bytes)?,
                };
                place.begin(group.number);
                names.join(pool, pool.rack(), place.addr())?;
                applied.place = Some(place);
                GroupFailure::NoRoot
            }
            Look::Group { root, group, own } => match applied.place.take() {
                Some(place) if group.seats.get(own) == Some(&place.addr()) => {
                    return Ok(Joined { root, group, own, place });
                }
                other => {
                    applied.place = other;
                    GroupFailure::Taken(pool.rack())
                }
            },
        };
        if begin.elapsed() > timeout {
            return Err(why.into());
        }
        std::thread::sleep(LOOK);
    }
}

/// The memory of a program that wants to join. Its announcement is removed when it is dropped.
struct Applied<'a> {
    pool: &'a Arc<Pool>,
    names: &'a Names,
    place: Option<OwnPlace>,
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            // If this fails, the announcement leads to memory that is no member's.
            let _ = self.names.leave(self.pool, self.pool.rack(), place.addr());
        }
    }
}

/// What the name of a group leads to.
enum Look {
    /// No root, or one that can't be read now.
    Nothing,
    /// A root that names this rack not.
    NotNamed,
    /// A root that names this rack, as the member of this number.
    Group { root: GlobalAddr, group: GroupPlace, own: usize },
}

fn look(pool: &Pool, names: &Names) -> Result<Look, StoreError> {
    let Some(word) = names.root(pool)? else { return Ok(Look::Nothing) };
    let root = GroupId::root_in(word);
    let group = match read_group(pool, root)? {
        Found::Is(group) if group.hash == names.hash() => group,
        _ => return Ok(Look::Nothing),
    };
    if group.bytes > pool.page_bytes() {
        return Ok(Look::Nothing);
    }
    Ok(match group.racks.iter().position(|rack| *rack == pool.rack()) {
        Some(own) => Look::Group { root, group, own },
        None => Look::NotNamed,
    })
}
