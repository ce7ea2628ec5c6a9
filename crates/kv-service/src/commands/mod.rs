//! The commands.
//!
//! | module | holds |
//! |---|---|
//! | `table`, `subcommands` | all of them by name, with what clients may ask about them |
//! | `execute` | what happens to a request before and after its command |
//! | `strings`, `numbers`, `keys`, `expiry`, `scan`, `hashes`, `sorted_sets` | those on data |
//! | `transactions`, `connection`, `client`, `introspection`, `info`, `config` | the others |

mod client;
mod config;
mod connection;
mod execute;
mod expiry;
mod hashes;
mod info;
mod introspection;
mod keys;
mod numbers;
mod options;
mod scan;
mod sorted_sets;
mod strings;
mod subcommands;
mod table;
mod transactions;

pub use execute::{Outcome, execute};
pub use subcommands::{Subcommand, name_at};
pub use table::{COMMANDS, Command};

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::Pool;
use rackpool_kv::ordered::{MapId, OrderedMaps};

use crate::collections::{Edit, Small};
use crate::failure::{Failure, said};
use crate::resp::{Args, Reply};
use crate::session::Session;
use crate::shared::Shared;
use crate::store::Store;

/// What a command works with.
#[derive(Debug)]
pub struct Context<'a> {
    /// The data.
    pub store: &'a mut Store,
    /// The connection.
    pub session: &'a mut Session,
    /// What all threads share.
    pub shared: &'a Shared,
    /// Which thread it is.
    pub thread: usize,
    /// Whether other connections wait until the command is done.
    pub others_wait: bool,
}

/// Does a command and writes its answer. What it wrote is taken back if it fails.
pub type Handler = fn(&mut Context<'_>, Args<'_>, &mut Reply<'_>) -> Result<(), Failure>;

/// What a command may look at while other connections wait, in keys, elements that it names, or
/// commands of a transaction. In another rack each costs some 10 us.
pub const MANY: usize = 256;
/// How many leaves of maps it may look at, of about 40 elements each.
const LEAVES: u32 = 16;

/// Pauses between two attempts at a transaction grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);
/// Failed attempts after which a transaction locks the entries that it reads.
const OPTIMISTIC: u32 = 6;
/// How long a transaction is tried.
const LONGEST: Duration = Duration::from_secs(10);

impl Context<'_> {
    /// Does something as one transaction, at one moment among all instances. `work` is done again
    /// when another change came between; within a transaction it is a part of that.
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
                // It waits for others.
                self.give_way_if(true)?;
                self.store.insist()?;
            }
            let result = work(self);
            let done = match &result {
                Ok(_) => self.store.commit(),
                // It may have failed because of what is not of one moment.
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

    /// Changes a collection at one moment: [`Store::edit`], several elements of a large one in a
    /// transaction.
    pub fn edit<R, S, L>(&mut self, key: &[u8], mut edit: Edit<S, L>) -> Result<R, Failure>
    where
        S: FnMut(&[u8], &mut Vec<u8>) -> Result<Small<R>, Failure>,
        L: FnMut(&mut OrderedMaps<Arc<Pool>>, MapId) -> Result<R, Failure>,
    {
        match self.store.edit(key, &mut edit) {
            Err(Failure::Several) => self.transact(|context| context.store.edit(key, &mut edit)),
            done => done,
        }
    }

    /// Fails with [`Failure::Long`] if what comes takes long and other connections wait. Nothing
    /// may have been changed before: the command is done from its begin by another thread.
    pub const fn give_way_if(&self, takes_long: bool) -> Result<(), Failure> {
        if takes_long && self.others_wait { Err(Failure::Long) } else { Ok(()) }
    }

    /// Limits what the next command walks along in maps.
    fn limit_walks(&mut self) {
        self.store.maps.limit_leaves(self.others_wait.then_some(LEAVES));
    }
}
