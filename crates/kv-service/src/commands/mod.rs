//! The commands.
//!
//! | module | holds |
//! |---|---|
//! | `table`, `subcommands` | the tables of commands, with what `COMMAND` and `HELP` return |
//! | `execute` | the steps before and after each command |
//! | `strings`, `numbers`, `hashes`, `sorted_sets` | the commands on values |
//! | `large_strings` | the commands on strings of which one is too long for an entry |
//! | `keys`, `expiry`, `scan` | the commands on keys |
//! | `transactions`, `connection`, `client`, `introspection`, `info`, `config` | the others |

mod arguments;
mod client;
mod config;
mod connection;
mod execute;
mod expiry;
mod hashes;
mod info;
mod introspection;
mod keys;
mod large_strings;
mod numbers;
mod scan;
mod sorted_sets;
mod strings;
mod subcommands;
mod table;
mod transactions;

pub use execute::{CommandOutcome, execute, refuse_arrived};
pub use large_strings::key_of_large;
pub use subcommands::{Subcommand, name_at};
pub use table::{COMMANDS, Command};

use std::time::{Duration, Instant};

use rackpool_kv::ordered::MapId;

use crate::collections::{Edit, LargeMaps, Small};
use crate::failure::{Failure, OVER_MEMORY_LIMIT, said};
use crate::memory_limit::{Evictor, Room};
use crate::resp::{Args, Reply};
use crate::session::Session;
use crate::shared::ServiceState;
use crate::store::Store;

/// The result of a command; its answer is in the reply buffer.
type CommandResult = Result<(), Failure>;

/// The environment of a command.
#[derive(Debug)]
pub struct Context<'a> {
    /// The thread's access to the data.
    pub store: &'a mut Store,
    /// The thread's search for keys to evict.
    pub evictor: &'a mut Evictor,
    /// The session of the connection.
    pub session: &'a mut Session,
    /// State that all threads share.
    pub shared: &'a ServiceState,
    /// The index of this thread.
    pub thread: usize,
    /// Whether the thread has other connections, which wait until the command is done.
    pub others_wait: bool,
}

/// Executes a command and writes its answer. If it fails, the caller removes what it wrote.
pub type Handler = fn(&mut Context<'_>, Args<'_>, &mut Reply<'_>) -> Result<(), Failure>;

/// The most keys, elements or queued commands that a command may have while other connections wait.
/// If they are in another rack, each costs about 10 us.
pub const MANY: usize = 256;
/// The most leaves of maps that such a command may read, with about 40 elements each.
const LEAVES: u32 = 16;

/// The longest pause between two attempts at a transaction.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);
/// The number of failed attempts after which a transaction locks the entries that it reads.
const OPTIMISTIC: u32 = 6;
/// How long a transaction is repeated.
const LONGEST: Duration = Duration::from_secs(10);

impl Context<'_> {
    /// Executes `work` as one transaction, atomic among all instances. `work` is called again after
    /// a conflict. Within a transaction it becomes a part of that.
    pub fn transact<R>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        if self.store.is_in_transaction() {
            return work(self);
        }
        let (began, mut pause) = (Instant::now(), Duration::from_micros(10));
        for attempt in 0.. {
            if attempt < OPTIMISTIC {
                self.store.begin();
            } else {
                // An insistent transaction waits for locks of others.
                self.give_way_if(true)?;
                self.store.insist()?;
            }
            let result = work(self);
            let done = match &result {
                Ok(_) => self.store.commit(),
                // The entries that were read never existed together, so the failure means nothing.
                Err(failure) if failure.is_conflict() => self.store.roll_back().map(|_| false),
                Err(_) => self.store.roll_back(),
            };
            if done? {
                return result;
            }
            if began.elapsed() > LONGEST {
                break;
            }
            std::thread::sleep(pause.mul_f32(rand::random()));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        Err(said(
            "ERR nothing was changed: for ten seconds other clients have changed what the command \
             reads before it was done; try it again, on fewer keys or elements",
        ))
    }

    /// Changes a collection atomically, as [`Store::edit`]; uses a transaction if several elements
    /// of a large collection change.
    pub fn edit<R, S, L>(&mut self, key: &[u8], mut edit: Edit<S, L>) -> Result<R, Failure>
    where
        S: FnMut(&[u8], &mut Vec<u8>) -> Result<Small<R>, Failure>,
        L: FnMut(&mut LargeMaps, MapId) -> Result<R, Failure>,
    {
        match self.store.edit(key, &mut edit) {
            Err(Failure::Several) => self.transact(|context| context.store.edit(key, &mut edit)),
            done => done,
        }
    }

    /// Fails with [`Failure::Long`] if `takes_long` and other connections wait. The caller must not
    /// have changed anything before: another thread executes the command from the start.
    pub const fn give_way_if(&self, takes_long: bool) -> Result<(), Failure> {
        if takes_long && self.others_wait { Err(Failure::Long) } else { Ok(()) }
    }

    /// Evicts keys if the entries take more than the limit. Fails if nothing could be evicted.
    pub(crate) fn make_room(&mut self) -> CommandResult {
        if !self.shared.memory.is_exceeded() {
            return Ok(());
        }
        let (room, evicted) = self.evictor.make_room(self.store, &self.shared.memory)?;
        self.shared.stats(self.thread).note_evicted(evicted);
        // An eviction is not limited.
        self.limit_walks();
        if room == Room::None { Err(OVER_MEMORY_LIMIT) } else { Ok(()) }
    }

    /// Limits the leaves of maps that the next command reads, if other connections wait.
    fn limit_walks(&mut self) {
        self.store.maps.limit_leaves(self.others_wait.then_some(LEAVES));
    }
}
