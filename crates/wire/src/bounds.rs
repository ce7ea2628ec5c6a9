//! Limits of the fields that programs choose and daemons pass on. Both ends of a connection check
//! them with the functions of this module. The sender checks before it sends, so a wrong argument
//! is an error of the call. The receiver checks because the sender's bytes are not trusted.
//! `docs/design/messages.md` lists all fields, their limits and which process checks them.

use bincode::{Decode, Encode};

use crate::control::ControlRequest;
use crate::metadata::MetadataRequest;

/// The longest name of a root, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest address in a [`RackAnnouncement`](crate::metadata::RackAnnouncement), in bytes.
pub const MAX_ADDRESS_BYTES: usize = 255;

/// The longest request to the metadata server, in bytes of its frame's body. The longest names and
/// addresses need a fraction of it.
pub const MAX_METADATA_REQUEST_BYTES: usize = 16 << 10;

/// The longest request of a client to its daemon's socket, in bytes of its frame's body.
pub const MAX_CONTROL_REQUEST_BYTES: usize = 16 << 10;

/// A field of a request that exceeds its limit; the variant names the field.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfBounds {
    /// The name of a root.
    #[error("a root's name of {bytes} B: names have 1 to {MAX_NAME_BYTES} B of UTF-8")]
    Name {
        /// Its length in bytes.
        bytes: u64,
    },
    /// The address of a rack.
    #[error("an address of {bytes} B: addresses have at most {MAX_ADDRESS_BYTES} B")]
    Address {
        /// Its length in bytes.
        bytes: u64,
    },
    /// The whole request is too long.
    #[error("a request of {bytes} B: requests have at most {most} B")]
    Request {
        /// The length of its body in bytes.
        bytes: u64,
        /// The receiver's limit in bytes.
        most: u64,
    },
    /// The request is complete but can't be decoded: its kind is unknown, or text in it is not
    /// UTF-8.
    #[error("the request means nothing ({0}): run the same rackpool release everywhere")]
    Meaningless(String),
}

/// Checks that `name` is a valid name of a root.
///
/// # Errors
/// [`OutOfBounds::Name`].
pub const fn check_name(name: &str) -> Result<(), OutOfBounds> {
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(()),
        bytes => Err(OutOfBounds::Name { bytes: bytes as u64 }),
    }
}

/// Checks that `address` is a valid address of a rack.
///
/// # Errors
/// [`OutOfBounds::Address`].
pub const fn check_address(address: &str) -> Result<(), OutOfBounds> {
    match address.len() {
        0..=MAX_ADDRESS_BYTES => Ok(()),
        bytes => Err(OutOfBounds::Address { bytes: bytes as u64 }),
    }
}

impl ControlRequest {
    /// Checks the fields that the daemon passes on.
    ///
    /// # Errors
    /// The first field that exceeds its limit.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::GetRoot { name } | Self::PutRoot { name, .. } => check_name(name),
            // The daemon answers these itself. It refuses invalid thread counts and lowers a limit
            // that is too large.
            Self::Hello { .. }
            | Self::RackStatus
            | Self::PageHistory { .. }
            | Self::TopPages { .. } => Ok(()),
        }
    }
}

impl MetadataRequest {
    /// Checks all fields of variable length.
    ///
    /// # Errors
    /// The first field that exceeds its limit.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::GetRoot { name } | Self::PutRoot { name, .. } => check_name(name),
            Self::Register(announced) => {
                check_address(&announced.control_path)?;
                check_address(&announced.fabric_address)
            }
            Self::Heartbeat { .. }
            | Self::Leave { .. }
            | Self::Locate { .. }
            | Self::Status
            | Self::Swap { .. }
            | Self::Explain { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::{Incarnation, MemoryId, RackId};

    use super::*;
    use crate::metadata::{RackAnnouncement, Tagged};
    use crate::{FRAME_HEADER_BYTES, encode};

    fn announcement(address: &str) -> RackAnnouncement {
        RackAnnouncement {
            rack: RackId(0),
            memory: MemoryId(1),
            incarnation: Incarnation(1),
            frames: 1,
            page_bytes: 1 << 16,
            seen: None,
            control_path: address.into(),
            fabric_address: address.into(),
        }
    }

    #[test]
    fn names_have_1_to_255_bytes_and_errors_say_so() {
        for name in ["", &"x".repeat(256), &"x".repeat(20_000)] {
            let bytes = name.len() as u64;
            let error = Err(OutOfBounds::Name { bytes });
            assert_eq!(ControlRequest::GetRoot { name: name.into() }.check(), error);
            assert_eq!(MetadataRequest::GetRoot { name: name.into() }.check(), error);
        }
        let error = check_name(&"x".repeat(256)).unwrap_err();
        assert_eq!(error.to_string(), "a root's name of 256 B: names have 1 to 255 B of UTF-8");
        assert_eq!(check_name("x"), Ok(()));
        assert_eq!(check_name(&"x".repeat(255)), Ok(()));
    }

    #[test]
    fn every_request_within_its_bounds_fits_a_request() {
        let name = "x".repeat(MAX_NAME_BYTES);
        let put = ControlRequest::PutRoot { name, expected: None, new: None };
        put.check().unwrap();
        let bytes = encode(&Tagged { tag: 1, message: put }).unwrap().len() - FRAME_HEADER_BYTES;
        assert!(bytes <= MAX_CONTROL_REQUEST_BYTES);
        let longest = MetadataRequest::Register(announcement(&"a".repeat(MAX_ADDRESS_BYTES)));
        longest.check().unwrap();
        let bytes = encode(&Tagged { tag: 1, message: longest }).unwrap().len();
        assert!(bytes - FRAME_HEADER_BYTES <= MAX_METADATA_REQUEST_BYTES);
        let longer = MetadataRequest::Register(announcement(&"a".repeat(MAX_ADDRESS_BYTES + 1)));
        assert_eq!(longer.check(), Err(OutOfBounds::Address { bytes: 256 }));
    }
}
