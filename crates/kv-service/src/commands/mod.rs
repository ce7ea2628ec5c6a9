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

pub use execute::execute;
pub use subcommands::{Subcommand, name_at};
pub use table::{COMMANDS, Command};

use crate::failure::Failure;
use crate::gate::Turn;
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
    /// The thread's right to work.
    pub turn: Turn<'a>,
    /// Which thread it is.
    pub thread: usize,
}

/// Does a command and writes its answer. What it wrote is taken back if it fails.
pub type Handler = fn(&mut Context<'_>, Args<'_>, &mut Reply<'_>) -> Result<(), Failure>;

impl Context<'_> {
    /// Does something while no other thread does commands.
    pub fn alone<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let begun = self.turn.begin_alone();
        let result = work(self);
        if begun {
            self.turn.end_alone();
        }
        result
    }
}
