//! Authentication between the processes of a pool.
//!
//! | module | holds |
//! |---|---|
//! | `party` | the parties that have certificates, and their names |
//! | `credentials` | a party's own certificate and key, checked, and its TLS configuration |
//! | `authority` | the certificate authority, for the `rackpool credentials` command |
//! | `address` | which addresses may be used without credentials |
//! | `same_user` | the user of the process at the other end of a loopback connection |
//! | `socket_query` | asks the kernel for one TCP socket |
//! | `explain` | what a broken TLS connection means, and what to do |
//!
//! `docs/design/access.md` describes the whole.
#![forbid(unsafe_code)]

mod address;
mod authority;
mod credentials;
mod error;
mod explain;
mod files;
mod party;
mod same_user;
mod socket_query;

pub use address::require_loopback;
pub use authority::Authority;
pub use credentials::Credentials;
pub use error::CredentialsError;
pub use explain::explain;
pub use party::Party;
pub use same_user::{require_same_user, require_server_of_same_user};
