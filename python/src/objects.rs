//! Object stores: the objects' bytes are memory of the pool that Python uses in place, by its
//! buffer protocol.
//!
//! The protocol hands out a pointer, and says when the last user of it has gone. So this module
//! has unsafe code: the functions that Python's interpreter calls for a buffer. They rest on two
//! rules:
//!
//! - Memory stays mapped as long as the Python object exists that exports it, and each buffer keeps
//!   that object. An unsealed object whose buffers are counted is neither sealed nor aborted.
//! - While a writable buffer may exist, no Rust code has a reference to its bytes.
#![expect(
    unsafe_code,
    reason = "Python's buffer protocol passes a structure with a raw pointer to the bytes"
)]

mod cast;
mod export;
mod info;
mod store;
mod subscription;
mod unsealed;
mod view;

pub(crate) use info::{ObjectInfo, ObjectStat};
pub(crate) use store::ObjectStore;
pub(crate) use subscription::{StoreEvent, Subscription};
pub(crate) use unsealed::UnsealedObject;
pub(crate) use view::View;
