//! Threads that ask the pool for objects: one that another rack has takes as long as its transfer,
//! and one of a rack that does not answer as long as that rack's lease.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

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
    /// `None` once the threads are to end.
    questions: Option<Sender<ObjectId>>,
    answers: Receiver<(ObjectId, Found)>,
    /// Readable when there are answers.
    answered: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl LookUps {
    /// Starts the threads, which end when this is dropped.
    pub(super) fn start(stores: &Stores) -> anyhow::Result<Self> {
        let (questions, asked) = channel::<ObjectId>();
        let (answer, answers) = channel();
        let asked = Arc::new(Mutex::new(asked));
        let answered = Arc::new(eventfd::new()?);
        let mut threads = Vec::new();
        for number in 0..LOOK_UP_THREADS {
            let (asked, answer) = (Arc::clone(&asked), answer.clone());
            let (answered, stores) = (Arc::clone(&answered), stores.clone());
            let thread = std::thread::Builder::new().name(format!("plasma-look-{number}"));
            threads.push(thread.spawn(move || {
                loop {
                    let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(id) = next else { return };
                    if answer.send((id, look_up(&stores, &id))).is_err() {
                        return;
                    }
                    eventfd::signal(&*answered);
                }
            })?);
        }
        Ok(Self { questions: Some(questions), answers, answered, threads })
    }

    /// Asks for an object.
    pub(super) fn ask(&self, id: ObjectId) {
        if let Some(questions) = &self.questions {
            // The threads end only after this.
            let _ = questions.send(id);
        }
    }

    /// The next answer, if there is one.
    pub(super) fn next_answer(&self) -> Option<(ObjectId, Found)> {
        self.answers.try_recv().ok()
    }

    /// Notes that the answers were seen. Later ones make the descriptor readable again.
    pub(super) fn begin_reading(&self) {
        eventfd::drain(&*self.answered);
    }
}

/// A thread that looks up has the pool open, so it ends before the pool does.
impl Drop for LookUps {
    fn drop(&mut self) {
        drop(self.questions.take());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
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
