use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rackpool_model::FabricKey;

use crate::FabricError;

/// The pool's key, which may arrive after the fabric was started and may be replaced later. Clones
/// share the key. A replacement does not affect existing connections.
#[derive(Clone)]
pub struct Keyring(Arc<RwLock<State>>);

#[derive(Clone, PartialEq, Eq)]
enum State {
    /// The fabric never gets a key.
    Unused,
    /// The key has not arrived. Left by `replace`.
    Awaited,
    /// The key has arrived; `replace` may change it.
    Known(FabricKey),
}

impl Keyring {
    fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// A keyring that never has a key: the fabric serves its own host only.
    #[must_use]
    pub fn unused() -> Self {
        Self::new(State::Unused)
    }

    /// A keyring that receives its key later. Until then, every handshake fails.
    #[must_use]
    pub fn awaited() -> Self {
        Self::new(State::Awaited)
    }

    /// Sets the key. Returns true if it differs from the previous state.
    pub fn replace(&self, key: FabricKey) -> bool {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let new = State::Known(key);
        let changed = *state != new;
        *state = new;
        changed
    }

    /// Returns true if peers must prove that they have the key.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.state() != State::Unused
    }

    /// The key, or `None` if the fabric uses none.
    ///
    /// # Errors
    ///
    /// [`FabricError::KeyAwaited`], of class `Retry`, until the key has arrived.
    pub fn key(&self) -> Result<Option<FabricKey>, FabricError> {
        match self.state() {
            State::Unused => Ok(None),
            State::Awaited => Err(FabricError::KeyAwaited),
            State::Known(key) => Ok(Some(key)),
        }
    }

    fn state(&self) -> State {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl From<Option<FabricKey>> for Keyring {
    fn from(key: Option<FabricKey>) -> Self {
        Self::new(key.map_or(State::Unused, State::Known))
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state() {
            State::Unused => "Keyring(unused)",
            State::Awaited => "Keyring(awaited)",
            State::Known(_) => "Keyring(secret)",
        })
    }
}
