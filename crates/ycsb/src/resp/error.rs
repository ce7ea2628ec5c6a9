//! Why a server did not answer as expected.

use std::io;

use crate::target::Server;

/// Why a server did not answer as expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RespError {
    #[error(
        "{server} can't be reached: {cause}. Start `rackpool-kv` or a Redis server there, or check --target"
    )]
    Connect { server: Server, cause: io::Error },
    #[error("the connection failed: {0}")]
    Lost(#[from] io::Error),
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server's answer is not in the Redis protocol: {0}")]
    Protocol(&'static str),
}
