//! How a root makes a group, until all members have joined.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::group::words::Found;

use super::names::{GroupId, Names};
use super::options::GroupFailure;
use super::place::{OwnPlace, read_group, read_words};
use crate::error::StoreError;

/// The pause between two beats.
const BEAT: Duration = Duration::from_millis(100);
/// The pause between two looks for programs that join.
const LOOK: Duration = Duration::from_millis(5);

/// Lets the group's name lead to this root, unless that of another one lives.
pub(super) fn take_name(pool: &Pool, names: &Names, id: GroupId) -> Result<(), StoreError> {
    loop {
        let found = names.root(pool)?;
        if let Some(word) = found
            && lives(pool, names, GroupId::root_in(word), id)?
        {
            return Err(GroupFailure::Exists.into());
        }
        if names.take(pool, found, id)? {
            return Ok(());
        }
    }
}

/// Whether the object at this address is that of another root of this group, which beats.
fn lives(pool: &Pool, names: &Names, addr: GlobalAddr, own: GroupId) -> Result<bool, StoreError> {
    let look = || {
        Ok::<_, StoreError>(match read_group(pool, addr)? {
            Found::Is(group) if group.hash == names.hash() => Some(group),
            Found::Is(_) | Found::Gone => None,
            // The rack does not answer: the name counts as in use.
            Found::Silent => return Err(GroupFailure::Exists.into()),
        })
    };
    let Some(first) = look()?.filter(|of| of.number != own.number) else { return Ok(false) };
    std::thread::sleep(4 * BEAT);
    let second = look()?;
    Ok(second.is_some_and(|now| now.number == first.number && now.words.beat != first.words.beat))
}

/// A group whose members have not all joined. Its name is given back unless it is opened.
pub(super) struct Opening<'a> {
    pub(super) pool: &'a Pool,
    pub(super) names: &'a Names,
    pub(super) id: GroupId,
    pub(super) is_open: bool,
}

impl Opening<'_> {
    /// Waits until a program has joined in each rack. Returns the addresses of their objects.
    pub(super) fn seats(
        &self,
        racks: &[RackId],
        joining: Duration,
    ) -> Result<Vec<GlobalAddr>, StoreError> {
        let begin = Instant::now();
        loop {
            // All are looked at again in each round: a program may have given up.
            let seats = racks.iter().map(|rack| self.seat(*rack)).collect::<Result<Vec<_>, _>>()?;
            if let Some(seats) = seats.iter().copied().collect() {
                return Ok(seats);
            }
            if begin.elapsed() > joining {
                let absent = racks.iter().zip(&seats).filter(|(_, seat)| seat.is_none());
                let absent = absent.map(|(rack, _)| *rack).collect();
                return Err(GroupFailure::Absent(absent).into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The object of the program that wants to be the member of a rack in this group.
    fn seat(&self, rack: RackId) -> Result<Option<GlobalAddr>, StoreError> {
        let Some(addr) = self.names.joining(self.pool, rack)? else { return Ok(None) };
        let found = read_words(self.pool, addr, self.id.number)?;
        Ok(matches!(found, Found::Is(_)).then_some(addr))
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            // If this fails, the name leads to memory that is no root's: the next group takes it.
            let _ = self.names.give_back(self.pool, self.id);
        }
    }
}

/// The thread that shows that the root lives.
#[derive(Debug)]
pub(super) struct Beats {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    pub(super) fn begin(place: &OwnPlace) -> Result<Self, StoreError> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stop, store) = (Arc::clone(&is_stopped), place.beat()?);
        let beat = move || {
            let mut beats = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                store(beats);
                beats += 1;
                std::thread::park_timeout(BEAT);
            }
        };
        let thread = std::thread::Builder::new().name("group-beats".into()).spawn(beat);
        Ok(Self { is_stopped, thread: Some(thread.map_err(StoreError::Thread)?) })
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
