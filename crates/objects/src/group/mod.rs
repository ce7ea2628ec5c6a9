//! Groups: a stream of messages from one program to others in many racks.
//!
//! The machines are in `rackpool_proto::group`; docs/design/groups.md describes them and this
//! shell.
//!
//! | module | contains |
//! |---|---|
//! | `options` | [`GroupOptions`], [`GroupReport`], [`GroupFailure`] |
//! | `names` | the names by which root and members find each other, and the decision |
//! | `place` | the memory of a program: words and ring |
//! | `record` | the bytes of a message in a ring |
//! | `root` | [`GroupRoot`] |
//! | `joining` | how a program becomes a member |
//! | `member` | [`GroupMember`] |

mod joining;
mod member;
mod names;
mod options;
mod place;
mod record;
mod root;

pub use member::{GroupMember, Message, Received};
pub use options::{GroupFailure, GroupOptions, GroupOutcome, GroupReport};
pub use root::GroupRoot;
