//! The machine of the metadata server: page directory, membership and named addresses. Every change
//! is durable before any process sees it. See `docs/design/metadata.md`.

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
