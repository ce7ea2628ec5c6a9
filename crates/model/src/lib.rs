//! The vocabulary of rackpool: ids, global addresses, page geometry and the page word.
//!
//! Pure code without allocation, clocks or I/O. Everything that the data plane keeps in shared
//! memory as one atomic word, and everything the control plane sends, is defined by types here.
#![no_std]
#![forbid(unsafe_code)]

mod address;
mod byte_size;
mod geometry;
mod id;
mod page_word;
mod size_class;

pub use address::{AddressError, GlobalAddr};
pub use byte_size::{ByteSize, ByteSizeError};
pub use geometry::{PageSize, PageSizeError};
pub use id::{ClientId, Epoch, FrameId, Incarnation, MemoryId, PageId, PageRange, RackId};
pub use page_word::{PageEvent, PageState, PageTransitionError, PageWord};
pub use size_class::SizeClass;
