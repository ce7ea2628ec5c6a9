//! The errors that end a data plane.

use std::num::TryFromIntError;

use rackpool_model::AddressError;
use rackpool_shm::OutsideMapping;
use rackpool_wire::CodecError;
use rustix::io::Errno;

use crate::slab::SlabError;

/// Why a data plane ends. What a client or another rack sends is never a reason: it is answered
/// with an error, or ends the client's service or the endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    /// The rack's memory contradicts itself.
    #[error(transparent)]
    Damaged(#[from] SlabError),
    /// The operating system refused a call without which the data plane can't go on.
    #[error("{what}: {error}")]
    OperatingSystem {
        /// The purpose of the call.
        what: &'static str,
        /// The reason that the operating system gives.
        #[source]
        error: Errno,
    },
    /// The daemon contradicts itself.
    #[error(
        "{0}, which is a fault of this program: start the daemon again, its memory is there, and \
         report what the log says"
    )]
    Bug(String),
}

impl PlaneError {
    /// Returns a function that makes the error of a call with this purpose.
    pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self::OperatingSystem { what, error }
    }
}

/// What the data plane computes and encodes is within its bounds: input is checked before.
macro_rules! bug {
    ($($error:ty)*) => {
        $(impl From<$error> for PlaneError {
            fn from(error: $error) -> Self {
                Self::Bug(error.to_string())
            }
        })*
    };
}

bug!(OutsideMapping AddressError CodecError TryFromIntError);

/// The result of a step of the data plane.
pub(crate) type Result<T, E = PlaneError> = std::result::Result<T, E>;
