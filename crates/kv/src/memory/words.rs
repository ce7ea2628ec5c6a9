use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::memory::{CasError, Memory};

/// The outcome of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CasOutcome {
    /// The word had the expected value and was replaced.
    Done,
    /// The word had another value.
    Lost,
    /// It is unknown whether the word was replaced.
    Unknown,
}

/// Reads the word at `addr`.
pub(crate) fn read_word<M: Memory>(memory: &M, addr: GlobalAddr) -> Result<u64, KvError<M::Error>> {
    let mut word = [0; 8];
    memory.read(addr, &mut word).map_err(KvError::Memory)?;
    Ok(u64::from_le_bytes(word))
}

/// Replaces the word at `addr` by `new` if it is `expected`.
pub(crate) fn swap_word<M: Memory>(
    memory: &M,
    addr: GlobalAddr,
    expected: u64,
    new: u64,
) -> Result<CasOutcome, KvError<M::Error>> {
    swap_of(memory.compare_and_swap(addr, expected, new), expected)
}

/// The outcome of a compare-and-swap from `expected`, given its result.
pub(crate) fn swap_of<E>(
    found: Result<u64, CasError<E>>,
    expected: u64,
) -> Result<CasOutcome, KvError<E>> {
    match found {
        Ok(found) if found == expected => Ok(CasOutcome::Done),
        Ok(_) => Ok(CasOutcome::Lost),
        Err(CasError::Indeterminate) => Ok(CasOutcome::Unknown),
        Err(CasError::GivenUp(_)) => Err(KvError::OutcomeUnknown),
        Err(CasError::Failed(error)) => Err(KvError::Memory(error)),
    }
}
