//! The types that all parts of rackpool share: ids, global addresses, page geometry, the page word
//! and hotness.
//!
//! Pure code without allocation, clocks or I/O. It defines the types of the single-word state that
//! the data plane keeps in shared memory, and of the ids in control-plane messages.
#![no_std]
#![forbid(unsafe_code)]

mod address;
mod byte_size;
mod fabric_key;
mod fabric_kind;
mod geometry;
mod heat;
mod id;
mod lock;
mod network;
mod occupants;
mod page_word;
mod reservation;
mod root_update;
mod size_class;
mod store_position;

pub use address::{AddressError, GlobalAddr};
pub use byte_size::{ByteSize, ByteSizeError};
pub use fabric_key::FabricKey;
pub use fabric_kind::{FabricKind, FabricKindError};
pub use geometry::{PageSize, PageSizeError};
pub use heat::{Access, Heat, HeatRules, HeatRulesError, Rest};
pub use id::{
    ClientId, Epoch, FrameId, Incarnation, MAX_RACKS, MemoryId, PageId, PageRange, RackId,
};
pub use lock::{
    CLAIMS, ClaimId, FOREIGN_CLAIMS, LOCK_LINE_BYTES, LOCK_WORDS, LockClaim, LockMode, LockWord,
    LockWordIndex, MAX_LOCK_LINES, byte_runs,
};
pub use network::Network;
pub use occupants::Occupants;
pub use page_word::{FrameWord, PageEvent, PageState, PageTransitionError, PageWord};
pub use reservation::{Armed, ArmedMode, Borrowed, RESERVATION_WORDS, ReservationState};
pub use root_update::RootUpdate;
pub use size_class::SizeClass;
pub use store_position::StorePosition;
