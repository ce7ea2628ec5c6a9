use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::mailbox::Mailbox;
use crate::commands::{CommandOutcome, Context, execute};
use crate::memory_limit::Evictor;
use crate::resp::{Reply, Views};
use crate::session::{Session, Transaction};
use crate::shared::ServiceState;
use crate::store::Store;

/// The number of threads for long commands: while one executes a command that takes minutes, the
/// other serves the rest.
pub const LONG_THREADS: usize = 2;

/// A long command on its way to a thread without connections.
#[derive(Debug)]
pub(super) struct Long {
    /// The thread that serves its connection.
    pub(super) thread: usize,
    /// The index of the connection in that thread.
    pub(super) index: usize,
    /// The session; the connection executes no other command meanwhile.
    pub(super) session: Session,
    /// The request.
    pub(super) request: Transaction,
}

/// The result of a long command.
#[derive(Debug)]
pub(super) struct LongCommandDone {
    pub(super) index: usize,
    pub(super) session: Session,
    /// The answer.
    pub(super) output: Vec<u8>,
    /// The large strings in it.
    pub(super) views: Views,
}

/// The channel to the threads for long commands. They end when all copies are dropped.
#[derive(Clone, Debug)]
pub struct ToLong(Sender<Long>);

impl ToLong {
    /// Hands a command over; returns it if the threads have ended.
    pub(super) fn post(&self, long: Long) -> Result<(), Box<Long>> {
        self.0.send(long).map_err(|unsent| Box::new(unsent.0))
    }
}

/// A thread that executes long commands, one at a time.
#[derive(Debug)]
pub struct LongThread {
    waiting: Arc<Mutex<Receiver<Long>>>,
    store: Store,
    evictor: Evictor,
    /// The index of its metrics.
    thread: usize,
    shared: Arc<ServiceState>,
    mailboxes: Arc<[Mailbox]>,
}

impl LongThread {
    /// The threads, one for each store, and the channel to them.
    pub fn prepare(
        stores: [Store; LONG_THREADS],
        shared: &Arc<ServiceState>,
        mailboxes: &Arc<[Mailbox]>,
    ) -> (ToLong, Vec<Self>) {
        let (sender, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let threads = stores.into_iter().zip(shared.threads()..).map(|(store, thread)| Self {
            waiting: Arc::clone(&waiting),
            store,
            evictor: Evictor::default(),
            thread,
            shared: Arc::clone(shared),
            mailboxes: Arc::clone(mailboxes),
        });
        (ToLong(sender), threads.collect())
    }

    /// Executes commands until all threads that serve connections have ended.
    pub fn run(mut self) {
        while let Some(long) = self.next() {
            self.serve(long);
        }
    }

    fn next(&self) -> Option<Long> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    fn serve(&mut self, Long { thread, index, mut session, request }: Long) {
        let (mut output, mut views) = (Vec::new(), Views::default());
        if let Some(args) = request.commands().next() {
            let mut reply = Reply::new(&mut output, &mut views, session.resp3);
            let mut context = Context {
                store: &mut self.store,
                evictor: &mut self.evictor,
                session: &mut session,
                shared: &self.shared,
                thread: self.thread,
                others_wait: false,
            };
            if execute(&mut context, args, &mut reply) == CommandOutcome::TakesLong {
                reply.error("ERR the command was not done: report this as a defect");
            }
        }
        let done = LongCommandDone { index, session, output, views };
        let posted = self.mailboxes.get(thread).map(|mailbox| mailbox.post_done(done));
        if let Some(Err(error)) = posted {
            tracing::warn!("a thread can't be woken: {error}");
        }
    }
}
