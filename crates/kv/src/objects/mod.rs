//! Objects between reservation and release: writing, publishing, resolving, freeing them.

pub(crate) mod publish;
pub(crate) mod reclaim;
pub(crate) mod resolve;
