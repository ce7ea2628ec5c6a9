//! The layout of a record's fields in one value.
//!
//! One field: the value is the field. Several: the length (4 bytes, little-endian) and the bytes of
//! each field, one after the other.

use super::key::KeyName;
use super::payload;

/// Bytes of a field's length, where there are several fields.
const PREFIX_BYTES: usize = 4;

/// Number and size of a record's fields (YCSB: `fieldcount`, `fieldlength`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of fields, at least 1.
    pub field_count: usize,
    /// Bytes of each field.
    pub field_length: usize,
}

/// A value that differs from what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The value does not have the fields of this run.
    #[error(
        "the value of {key} ({found} B) does not have the fields of this run ({expected} B): \
         give the --field-count and --field-length it was loaded with, or load again"
    )]
    OtherFields {
        /// Key of the record.
        key: String,
        /// Bytes found.
        found: usize,
        /// Bytes of a value in this run.
        expected: usize,
    },
    /// A scan returned a key that no record of any run has.
    #[error(
        "a scan returned the key '{key}', which YCSB did not write: give a table of its own with --table"
    )]
    OtherKey {
        /// The key.
        key: String,
    },
    /// A scan returned more records than requested.
    #[error("a scan from {key} returned more records than requested")]
    ScannedTooMany {
        /// The first key of the scan.
        key: String,
    },
    /// A field's bytes were never written for this key.
    #[error("field {field} of {key} holds bytes that were never written to it")]
    Corrupt {
        /// Key of the record.
        key: String,
        /// Number of the field, from 0.
        field: usize,
    },
}

impl Layout {
    /// Bytes of a value with all its fields.
    pub fn value_bytes(&self) -> usize {
        if self.field_count == 1 {
            self.field_length
        } else {
            self.field_count * (PREFIX_BYTES + self.field_length)
        }
    }

    /// Returns the bytes of each field of a value, if the value has this layout.
    pub(super) fn split<'a>(&self, value: &'a [u8]) -> Option<Vec<&'a [u8]>> {
        (0..self.field_count).map(|field| value.get(self.place(value, field)?)).collect()
    }

    /// Appends a field to a value that holds the fields before it.
    pub(super) fn push(&self, value: &mut Vec<u8>, field: &[u8]) {
        if self.field_count > 1 {
            // The plan bounds fields to far less than 4 GiB.
            let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
            value.extend_from_slice(&length.to_le_bytes());
        }
        value.extend_from_slice(field);
    }

    /// Checks that the bytes of one field, read on its own, were written for `key`.
    pub(super) fn verify_field(
        &self,
        key: &KeyName,
        field: usize,
        bytes: &[u8],
    ) -> Result<(), LayoutError> {
        if bytes.len() == self.field_length && payload::is_genuine(key.as_bytes(), field, bytes) {
            return Ok(());
        }
        Err(LayoutError::Corrupt { key: key.to_string(), field })
    }

    /// Returns the position of a field in a value, if the value has this layout.
    fn place(&self, value: &[u8], field: usize) -> Option<std::ops::Range<usize>> {
        if value.len() != self.value_bytes() || field >= self.field_count {
            return None;
        }
        if self.field_count == 1 {
            return Some(0..value.len());
        }
        let prefix = field * (PREFIX_BYTES + self.field_length);
        let (length, _) = value[prefix..].split_first_chunk::<PREFIX_BYTES>()?;
        let start = prefix + PREFIX_BYTES;
        (u32::from_le_bytes(*length) as usize == self.field_length)
            .then_some(start..start + self.field_length)
    }

    /// Checks that field `field`, or all fields if `None`, were written for `key`.
    pub(super) fn verify(
        &self,
        key: &KeyName,
        value: &[u8],
        field: Option<usize>,
    ) -> Result<(), LayoutError> {
        let fields = field.map_or(0..self.field_count, |field| field..field + 1);
        for field in fields {
            let place = self.place(value, field).ok_or_else(|| self.other_fields(key, value))?;
            if !payload::is_genuine(key.as_bytes(), field, &value[place]) {
                return Err(LayoutError::Corrupt { key: key.to_string(), field });
            }
        }
        Ok(())
    }

    /// Replaces one field of a value that was read.
    pub(super) fn replace(
        &self,
        key: &KeyName,
        value: &mut [u8],
        field: usize,
        bytes: &[u8],
    ) -> Result<(), LayoutError> {
        let place = self.place(value, field).filter(|_| bytes.len() == self.field_length);
        let place = place.ok_or_else(|| self.other_fields(key, value))?;
        value[place].copy_from_slice(bytes);
        Ok(())
    }

    fn other_fields(&self, key: &KeyName, value: &[u8]) -> LayoutError {
        let expected = self.value_bytes();
        LayoutError::OtherFields { key: key.to_string(), found: value.len(), expected }
    }
}

/// Generates the values that one thread writes, each with its own nonce.
#[derive(Debug)]
pub(super) struct ValueWriter {
    layout: Layout,
    nonce: u64,
}

impl ValueWriter {
    pub(super) fn new(layout: Layout, first_nonce: u64) -> Self {
        Self { layout, nonce: first_nonce }
    }

    /// Fills `value` with new contents for all fields.
    pub(super) fn write_all(&mut self, key: &KeyName, value: &mut Vec<u8>) {
        value.clear();
        for field in 0..self.layout.field_count {
            if self.layout.field_count > 1 {
                // The plan bounds the length to far less than 4 GiB.
                let length = u32::try_from(self.layout.field_length).unwrap_or(u32::MAX);
                value.extend_from_slice(&length.to_le_bytes());
            }
            let start = value.len();
            value.resize(start + self.layout.field_length, 0);
            payload::fill(key.as_bytes(), field, self.nonce, &mut value[start..]);
            self.nonce = self.nonce.wrapping_add(1);
        }
    }

    /// Fills `bytes` with new contents for one field.
    pub(super) fn write_field(&mut self, key: &KeyName, field: usize, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.resize(self.layout.field_length, 0);
        payload::fill(key.as_bytes(), field, self.nonce, bytes);
        self.nonce = self.nonce.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyStyle;

    #[test]
    fn one_field_is_the_value_itself() {
        let layout = Layout { field_count: 1, field_length: 64 };
        let (key, mut value) = (KeyName::new(5, KeyStyle::default()), Vec::new());
        ValueWriter::new(layout, 1).write_all(&key, &mut value);
        assert_eq!(value.len(), 64);
        assert_eq!(layout.verify(&key, &value, None), Ok(()));
    }

    #[test]
    fn several_fields_carry_their_lengths_and_can_be_written_singly() {
        let layout = Layout { field_count: 3, field_length: 20 };
        let (key, mut value) = (KeyName::new(5, KeyStyle::default()), Vec::new());
        let mut writer = ValueWriter::new(layout, 1);
        writer.write_all(&key, &mut value);
        assert_eq!(value.len(), layout.value_bytes());
        assert_eq!(value[24..28], [20, 0, 0, 0]);
        let before = value.clone();
        let mut field = Vec::new();
        writer.write_field(&key, 1, &mut field);
        layout.replace(&key, &mut value, 1, &field).unwrap();
        assert_eq!(value[..28], before[..28]);
        assert_ne!(value[28..48], before[28..48]);
        assert_eq!(value[48..], before[48..]);
        assert_eq!(layout.verify(&key, &value, None), Ok(()));

        value[30] ^= 1;
        let corrupt = LayoutError::Corrupt { key: key.to_string(), field: 1 };
        assert_eq!(layout.verify(&key, &value, None), Err(corrupt));
        assert_eq!(layout.verify(&key, &value, Some(0)), Ok(()));
    }

    #[test]
    fn values_of_another_run_are_named_as_such() {
        let key = KeyName::new(5, KeyStyle::default());
        let layout = Layout { field_count: 2, field_length: 20 };
        for mut value in [vec![], vec![0; 64], vec![0; 48]] {
            let error = layout.verify(&key, &value, None).unwrap_err();
            assert!(error.to_string().contains("--field-count"), "{error}");
            assert_eq!(layout.replace(&key, &mut value, 0, &[1; 20]), Err(error));
        }
    }
}
