//! Threads that ask the pool for objects: one that another rack has takes as long as its transfer,
//! and one of a rack that does not answer as long as that rack's lease.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rackpool_objects::{StoreError, View};
use rackpool_sync::eventfd;

use super::store_memory::Stores;
use crate::protocol::ObjectId;

/// How many threads look up.
pub(super) const LOOK_UP_THREADS: u16 = 4;

/// What the pool has of an object.
#[derive(Debug)]
pub(super) enum Found {
    Absent,
    Here(View),
    Demoted(View),
}

/// Questions to the pool, and its answers.
#[derive(Debug)]
pub(super) struct LookUps {
    questions: Sender<ObjectId>,
    answers: Receiver<(ObjectId, Found)>,
    /// Readable when there are answers.
    answered: Arc<OwnedFd>,
}

impl LookUps {
    /// Starts the threads, which end when this is dropped.
    pub(super) fn start(stores: &Stores) -> anyhow::Result<Self> {
        let (questions, asked) = channel::<ObjectId>();
        let (answer, answers) = channel();
        let asked = Arc::new(Mutex::new(asked));
        let answered = Arc::new(eventfd::new()?);
        for number in 0..LOOK_UP_THREADS {
            let (asked, answer) = (Arc::clone(&asked), answer.clone());
            let (answered, stores) = (Arc::clone(&answered), stores.clone());
            std::thread::Builder::new().name(format!("plasma-look-{number}")).spawn(move || {
                loop {
                    let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(id) = next else { return };
                    if answer.send((id, look_up(&stores, &id))).is_err() {
                        return;
                    }
                    eventfd::signal(&*answered);
                }
            })?;
        }
        Ok(Self { questions, answers, answered })
    }

    /// Asks for an object.
    pub(super) fn ask(&self, id: ObjectId) {
        // The threads end only after this.
        let _ = self.questions.send(id);
    }

    /// The next answer, if there is one.
    pub(super) fn next_answer(&self) -> Option<(ObjectId, Found)> {
        self.answers.try_recv().ok()
    }

    /// Notes that the answers were seen. Later answers make the descriptor readable again.
    pub(super) fn begin_reading(&self) {
        eventfd::drain(&*self.answered);
    }
}

impl AsFd for LookUps {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answered.as_fd()
    }
}

fn look_up(stores: &Stores, id: &ObjectId) -> Found {
    try_look_up(stores, id).unwrap_or_else(|error| {
        tracing::warn!("the object {id} can't be got: {error}");
        Found::Absent
    })
}

fn try_look_up(stores: &Stores, id: &ObjectId) -> Result<Found, StoreError> {
    if let Some(view) = stores.objects.get(&id.0)? {
        return Ok(Found::Here(view));
    }
    let demoted = stores.external.as_ref().map(|external| external.get(&id.0)).transpose()?;
    Ok(demoted.flatten().map_or(Found::Absent, Found::Demoted))
}
