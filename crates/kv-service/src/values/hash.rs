//! A hash in one value: its fields in the order of their creation.
//!
//! ```text
//! field length u32 | value length u32 | field | value | the next …
//! ```

use crate::failure::{DAMAGED, Failure};

const HEAD: usize = 8;
/// A hash with more bytes than this is kept in a map.
pub const MAX_SMALL: usize = 8 << 10;

/// The encoded fields of a hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields<'a>(pub &'a [u8]);

/// A field with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Iterates over the fields; ends after the first failure.
    pub fn iter(self) -> impl Iterator<Item = Result<Field<'a>, Failure>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some((field, next)) = split(rest) else {
                rest = &[];
                return Some(Err(DAMAGED));
            };
            rest = next;
            Some(Ok(field))
        })
    }

    /// The value of a field.
    pub fn get(self, name: &[u8]) -> Result<Option<&'a [u8]>, Failure> {
        for field in self.iter() {
            let field = field?;
            if field.name == name {
                return Ok(Some(field.value));
            }
        }
        Ok(None)
    }

    /// The number of fields.
    pub fn count(self) -> Result<usize, Failure> {
        self.iter().try_fold(0, |count, field| field.map(|_| count + 1))
    }

    /// Writes the hash with this field set into `into`: in the place of its old value, or last.
    /// Returns whether the field is new.
    pub fn set(self, name: &[u8], value: &[u8], into: &mut Vec<u8>) -> Result<bool, Failure> {
        let mut is_new = true;
        for field in self.iter() {
            let field = field?;
            if field.name == name {
                is_new = false;
                push(into, name, value)?;
            } else {
                push(into, field.name, field.value)?;
            }
        }
        if is_new {
            push(into, name, value)?;
        }
        Ok(is_new)
    }

    /// Writes the hash without this field into `into`. Returns whether the field was present.
    pub fn remove(self, name: &[u8], into: &mut Vec<u8>) -> Result<bool, Failure> {
        let mut was_there = false;
        for field in self.iter() {
            let field = field?;
            if field.name == name {
                was_there = true;
            } else {
                push(into, field.name, field.value)?;
            }
        }
        Ok(was_there)
    }
}

fn split(bytes: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let [n0, n1, n2, n3, v0, v1, v2, v3] = *head;
    let (name, rest) = rest.split_at_checked(u32::from_le_bytes([n0, n1, n2, n3]) as usize)?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes([v0, v1, v2, v3]) as usize)?;
    Some((Field { name, value }, rest))
}

fn push(into: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), Failure> {
    let (Ok(names), Ok(values)) = (u32::try_from(name.len()), u32::try_from(value.len())) else {
        return Err(crate::failure::said("ERR string exceeds maximum allowed size"));
    };
    into.extend_from_slice(&names.to_le_bytes());
    into.extend_from_slice(&values.to_le_bytes());
    into.extend_from_slice(name);
    into.extend_from_slice(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_places() {
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        assert!(Fields(&[]).set(b"a", b"1", &mut first).unwrap());
        assert!(Fields(&first).set(b"b", b"2", &mut second).unwrap());
        assert!(!Fields(&second).set(b"a", b"long", &mut third).unwrap());
        let names: Vec<_> = Fields(&third).iter().map(|field| field.unwrap().name).collect();
        assert_eq!(names, [b"a", b"b"]);
        assert_eq!(Fields(&third).get(b"a").unwrap(), Some(&b"long"[..]));
        let mut fourth = Vec::new();
        assert!(Fields(&third).remove(b"a", &mut fourth).unwrap());
        assert_eq!(Fields(&fourth).count().unwrap(), 1);
    }

    #[test]
    fn damage_is_said() {
        let mut whole = Vec::new();
        Fields(&[]).set(b"field", b"value", &mut whole).unwrap();
        for end in 1..whole.len() {
            assert!(Fields(&whole[..end]).count().is_err(), "{end}");
        }
    }
}
