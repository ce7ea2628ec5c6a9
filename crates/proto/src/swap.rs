//! Page swaps: a hot page and a cold one exchange racks. See docs/design/swap.md.
//!
//! Two machines: [`SwapPeer`], for both sides of a swap, and [`SwapServer`], the metadata server's
//! part. Only the commit of [`SwapServer`] decides a swap.

mod event;
mod finish;
mod forward;
mod frames;
mod in_flight;
mod pages;
mod peer;
mod record;
mod requester;
mod rules;
mod served_swap;
mod server;

pub use event::{PeerAction, PeerEvent, Quiesce, SwapEvent};
pub use frames::Frames;
pub use pages::Waits;
pub use peer::SwapPeer;
pub use record::{Phase, RECORD_WORDS, RECORDS, Record, Role, SwapRecordError};
pub use rules::SwapRules;
pub use server::{ServerEvent, SwapBatch, SwapServer};
