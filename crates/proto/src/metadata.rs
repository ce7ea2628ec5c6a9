//! The machine of the metadata server: page directory, membership and named addresses, with every
//! change durable before anybody sees it. `docs/design/metadata.md` tells the whole story.

mod batch;
mod change;
mod event;
mod lineage;
mod machine;
mod records;
mod request_handler;
mod roots;
mod swaps;
mod view;

pub use change::Change;
pub use event::{Action, BatchId, ConnectionToken, Event, OperatorEvent, RackState};
pub use machine::MetadataMachine;
pub use records::{RecordError, Records};
pub use roots::{MAX_ROOTS_BYTES, Roots};
