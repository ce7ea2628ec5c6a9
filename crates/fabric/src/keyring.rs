use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rackpool_model::FabricKey;

use crate::FabricError;

/// The pool's key, as far as it is known: it may come later and be replaced. Clones share it.
/// Connections that stand stay when it changes.
#[derive(Clone)]
pub struct Keyring(Arc<RwLock<State>>);

#[derive(Clone, PartialEq, Eq)]
enum State {
    Unused,
    Awaited,
    Known(FabricKey),
}

impl Keyring {
    fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// There is no key and never will be: the fabric stays on its host.
    #[must_use]
    pub fn unused() -> Self {
        Self::new(State::Unused)
    }

    /// The key comes later: until then every handshake fails.
    #[must_use]
    pub fn awaited() -> Self {
        Self::new(State::Awaited)
    }

    /// The key from now on; whether it is another one than before.
    pub fn replace(&self, key: FabricKey) -> bool {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let new = State::Known(key);
        let changed = *state != new;
        *state = new;
        changed
    }

    /// Whether peers have to prove that they have a key.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.state() != State::Unused
    }

    /// The key; `None` when none is used. An error of class `Retry` until it has come.
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
