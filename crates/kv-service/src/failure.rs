//! Why a command failed, in the words of Redis.

use std::borrow::Cow;

use rackpool_client::{AccessError, AllocError, DaemonError, FreeError};
use rackpool_kv::ordered::OrderedError;
use rackpool_kv::{KvError, PoolError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request cannot be executed. The text begins with the kind of error, such as `ERR` or
    /// `WRONGTYPE`.
    #[error("{0}")]
    Refused(Cow<'static, str>),
    /// The table or the pool failed.
    #[error("{}", pool_text(.0))]
    Pool(#[from] KvError<PoolError>),
    /// The command takes long and would delay the thread's other connections. It has changed
    /// nothing; a thread for long commands executes it again. No client sees this.
    #[error("ERR the command takes long")]
    Long,
    /// A large string is read or stored: the command's handler for large strings has to execute it,
    /// from the start. No client sees this.
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    LargeString,
    /// Several elements of a large collection would change, which needs a transaction.
    #[error("ERR several elements of a large collection change in a transaction only")]
    Several,
    /// The map of a large collection failed.
    #[error("{}", map_text(.0))]
    Map(#[source] OrderedError<PoolError>),
}

/// The key holds a value of another type.
pub const WRONG_TYPE: Failure =
    said("WRONGTYPE Operation against a key holding the wrong kind of value");
/// The argument is not an integer.
pub const NOT_AN_INTEGER: Failure = said("ERR value is not an integer or out of range");
/// The argument is not a floating-point number.
pub const NOT_A_FLOAT: Failure = said("ERR value is not a valid float");
/// The options contradict each other or are unknown.
pub const SYNTAX: Failure = said("ERR syntax error");
/// The bytes of a value could not be decoded.
pub const DAMAGED: Failure =
    said("ERR the value is damaged: some other program wrote it; delete or overwrite the key");

/// The entries take more than the limit, and nothing could be evicted.
pub const OVER_MEMORY_LIMIT: Failure =
    said("OOM command not allowed when used memory > 'maxmemory'.");

/// A failure with a constant text.
#[must_use]
pub const fn said(text: &'static str) -> Failure {
    Failure::Refused(Cow::Borrowed(text))
}

/// A failure with a formatted text.
#[must_use]
pub fn told(text: String) -> Failure {
    Failure::Refused(Cow::Owned(text))
}

impl Failure {
    /// Whether the map of a collection was destroyed before the operation.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Map(OrderedError::Gone { .. }))
    }

    /// Whether a thread for long commands has to execute the command.
    #[must_use]
    pub const fn is_long(&self) -> bool {
        matches!(self, Self::Long)
    }

    /// Whether a value is too long for an entry.
    #[must_use]
    pub const fn is_of_length(&self) -> bool {
        matches!(self, Self::LargeString | Self::Pool(KvError::TooLarge { .. }))
    }

    /// Whether it is unknown if the change was made.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Pool(KvError::OutcomeUnknown))
    }

    /// Whether the bytes of an entry are damaged.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Pool(KvError::Corrupt { .. }))
    }

    /// Whether the entries that a transaction read never existed together.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Pool(KvError::Conflict))
    }

    /// Whether the pool is full.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Pool(KvError::Memory(PoolError::Alloc(
                AllocError::OutOfMemory { .. } | AllocError::RackFull { .. }
            )))
        )
    }

    /// Whether the daemon has forgotten this client, which then must open the pool again.
    #[must_use]
    pub const fn is_forgotten(&self) -> bool {
        let Self::Pool(KvError::Memory(error)) = self else { return false };
        matches!(
            error,
            PoolError::Alloc(AllocError::Daemon(DaemonError::Forgotten))
                | PoolError::Access(AccessError::Daemon(DaemonError::Forgotten))
                | PoolError::Free(FreeError::Access(AccessError::Daemon(DaemonError::Forgotten)))
        )
    }
}

impl From<OrderedError<PoolError>> for Failure {
    fn from(error: OrderedError<PoolError>) -> Self {
        match error {
            OrderedError::Table(error) => Self::Pool(error),
            OrderedError::LeafLimit { .. } => Self::Long,
            error => Self::Map(error),
        }
    }
}

fn map_text(error: &OrderedError<PoolError>) -> String {
    match error {
        OrderedError::TooLarge { .. } => {
            format!("ERR string exceeds maximum allowed size (proto-max-bulk-len): {error}")
        }
        error => format!("ERR {error}"),
    }
}

fn pool_text(error: &KvError<PoolError>) -> String {
    match error {
        KvError::Memory(PoolError::Alloc(AllocError::OutOfMemory { .. })) => {
            format!("OOM command not allowed when the pool is full: {error}")
        }
        KvError::Memory(PoolError::Alloc(AllocError::RackFull { .. })) => {
            format!("OOM command not allowed when the rack is full: {error}")
        }
        KvError::TableFull { .. } => format!("OOM command not allowed: {error}"),
        KvError::TooLarge { .. } => {
            format!("ERR string exceeds maximum allowed size (proto-max-bulk-len): {error}")
        }
        KvError::OtherKind { .. } => WRONG_TYPE.to_string(),
        error => format!("ERR {error}"),
    }
}
