//! Why a server did not answer as expected.

use std::io;

use crate::target::Server;

/// Why a server did not answer as expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RespError {
    #[error("{server} can't be reached: {cause}. Is `rackpool-kv` running there?")]
    Connect { server: Server, cause: io::Error },
    #[error("the connection failed: {0}")]
    Lost(#[from] io::Error),
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server's answer is none of Redis' protocol: {0}")]
    Protocol(&'static str),
}
