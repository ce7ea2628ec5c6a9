use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

use rackpool_model::GlobalAddr;
use rackpool_wire::metadata::Refusal;

/// The most bytes of all names, each counted as its length plus 16. With this limit and the one on
/// racks the state of the pool fits one message.
pub const MAX_ROOTS_BYTES: usize = 768 << 10;

/// Roots: named addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    by_name: BTreeMap<String, GlobalAddr>,
    bytes: usize,
}

impl Roots {
    /// Returns the address under the name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<GlobalAddr> {
        self.by_name.get(name).copied()
    }

    /// Returns all names in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, GlobalAddr)> {
        self.by_name.iter().map(|(name, addr)| (name.as_str(), *addr))
    }

    /// Stores an address under the name, or removes the name.
    pub fn set(&mut self, name: &str, addr: Option<GlobalAddr>) {
        let bytes = Self::bytes_of(name);
        match addr {
            Some(addr) => {
                if self.by_name.insert(name.into(), addr).is_none() {
                    self.bytes += bytes;
                }
            }
            None => {
                if self.by_name.remove(name).is_some() {
                    self.bytes -= bytes;
                }
            }
        }
    }

    /// Checks that the name is present or fits.
    pub fn check_room(&self, name: &str) -> Result<(), Refusal> {
        if self.by_name.contains_key(name) || self.bytes + Self::bytes_of(name) <= MAX_ROOTS_BYTES {
            return Ok(());
        }
        Err(Refusal::Invalid(format!(
            "the pool's names take {} B and may take {MAX_ROOTS_BYTES} B: remove one",
            self.bytes
        )))
    }

    const fn bytes_of(name: &str) -> usize {
        name.len() + 16
    }
}
