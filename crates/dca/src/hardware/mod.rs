//! The cache into which cards write, of this machine: what it has, and changes that are undone.
//!
//! Everything is read from files of the kernel below a root, so tests use files of their own.
//! docs/design/direct-cache-access.md has the sources of each register and file.

mod error;
mod note;
mod plan;
mod registers;
mod resctrl;
mod state;

pub use error::HardwareError;
pub use note::{Held, Leftover, leftover, restore};
pub use plan::{Change, Plan};
pub use registers::{MsrFiles, Registers};
pub use resctrl::{Group, Resctrl};
pub use state::{Socket, State};
