use crate::error::StoreError;

/// The longest id in bytes.
pub(crate) const LONGEST_ID: usize = 64;

/// The first byte of an object's key in the object table and in replica tables.
const OBJECT: u8 = b'o';
/// The first byte of a registration's key in the object table.
const REGISTRATION: u8 = b'r';

/// The keys of one id: the id behind a byte that names the kind of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    bytes: [u8; 1 + LONGEST_ID],
    len: usize,
}

impl Keys {
    pub(crate) fn of(id: &[u8]) -> Result<Self, StoreError> {
        if id.is_empty() || id.len() > LONGEST_ID {
            return Err(StoreError::IdLength { bytes: id.len() });
        }
        let (mut bytes, len) = ([0; 1 + LONGEST_ID], 1 + id.len());
        bytes[0] = OBJECT;
        bytes[1..len].copy_from_slice(id);
        Ok(Self { bytes, len })
    }

    /// The key of the object.
    pub(crate) fn object(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.bytes[1..self.len]
    }

    /// The length of the id in bytes.
    pub(crate) const fn id_len(&self) -> usize {
        self.len - 1
    }

    /// The key of the object's registration.
    pub(crate) const fn registration(mut self) -> Self {
        self.bytes[0] = REGISTRATION;
        self
    }

    /// The keys of the id in the key of a registration; `None` for other keys.
    pub(crate) fn registered_in(key: &[u8]) -> Option<Self> {
        match key {
            [REGISTRATION, id @ ..] => Self::of(id).ok(),
            _ => None,
        }
    }

    /// The id in the key of an object; `None` for other keys.
    pub(crate) fn id_in(key: &[u8]) -> Option<&[u8]> {
        match key {
            [OBJECT, id @ ..] => Some(id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_1_to_64_bytes() {
        for bytes in [0, 65, 1000] {
            let told = Keys::of(&vec![7; bytes]);
            assert!(matches!(told, Err(StoreError::IdLength { bytes: found }) if found == bytes));
        }
        for bytes in [1, 64] {
            let keys = Keys::of(&vec![7; bytes]).unwrap();
            assert_eq!(Keys::id_in(keys.object()), Some(&vec![7; bytes][..]));
            assert_eq!(Keys::id_in(keys.registration().object()), None);
            let found = Keys::registered_in(keys.registration().object()).unwrap();
            assert_eq!(found.object(), keys.object());
            assert!(Keys::registered_in(keys.object()).is_none());
        }
    }
}
