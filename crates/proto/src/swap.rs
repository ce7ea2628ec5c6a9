//! Page swaps: a hot page and a cold one exchange racks. See docs/design/swap.md.
//!
//! Two machines: [`SwapPeer`], for both sides of a swap, and [`Server`], the metadata server's
//! part. Only the commit of [`Server`] decides a swap.

mod event;
mod finish;
mod forward;
mod frames;
mod in_flight;
mod pages;
mod rack;
mod record;
mod requester;
mod rules;
mod served_swap;
mod server;

pub use event::{Quiesce, RackAction, RackEvent, SwapEvent};
pub use frames::{Frames, Offered};
pub use pages::Waits;
pub use rack::SwapPeer;
pub use record::{Phase, RECORD_WORDS, RECORDS, Record, RecordError, Role};
pub use rules::SwapRules;
pub use server::{Server, ServerEvent, SwapBatch};
